"""Finds personal data in texts and JSON values, and hides it."""
