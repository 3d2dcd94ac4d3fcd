"""Serves as a module what was not written as one: a folder of Python files, an MCP server or an OpenAPI document."""
