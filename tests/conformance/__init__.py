"""Runs the conformance suite of the Model Context Protocol against a gateway, and against the host of MCP servers."""
