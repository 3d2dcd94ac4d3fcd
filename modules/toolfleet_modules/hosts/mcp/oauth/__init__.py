"""Gets tokens for MCP servers that want OAuth, by the official SDK, and keeps them."""
