"""Writes a new module's files."""
