"""Serves MCP clients of 2025-11-25 and before, which open sessions."""
