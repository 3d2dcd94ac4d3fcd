"""Carries changes of MCP servers through the fleet's Redis: what clients watch, and what has changed."""
