"""Begins the spans of requests that come in: one for each, by HTTP's names or by MCP's."""
