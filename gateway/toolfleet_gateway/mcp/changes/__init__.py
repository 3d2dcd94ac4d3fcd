"""Tells MCP clients of changes: of lists, of resources that they watch, and of their tasks."""
