"""Serves the tools of an MCP server as a module, over its standard streams or HTTP."""
