"""Describes settings, where they come from, and the servers that they name."""
