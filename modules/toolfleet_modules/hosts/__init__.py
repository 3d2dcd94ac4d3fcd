"""Serves as a module what was not written as one: a folder of Python files."""
