"""Serves a folder of Python files: each function with `@tool` is a tool, also while the files change."""
