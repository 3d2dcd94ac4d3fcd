"""Reads a Python function as a tool: what its signature and its docstring say to a model, and how a call's arguments become its own."""
