"""Asks MCP clients whether calls of their own may begin, where the rules let them say so."""
