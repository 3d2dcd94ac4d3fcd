"""Carries messages between a session and an MCP server: over the standard streams of a program, or HTTP."""
