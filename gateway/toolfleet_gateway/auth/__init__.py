"""Finds the sender of a request, and how much it may send."""
