"""Watches the resources of an MCP server for clients, and tells of its changes beside tools."""
