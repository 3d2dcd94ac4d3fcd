"""Runs the calls of MCP clients."""
