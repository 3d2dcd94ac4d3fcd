"""Describes settings, and where they come from."""
