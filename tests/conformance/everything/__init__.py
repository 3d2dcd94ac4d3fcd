"""Serves over MCP whatever the conformance suite's scenarios ask for by name."""
