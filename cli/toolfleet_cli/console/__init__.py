"""Reads what is typed and writes what is shown."""
