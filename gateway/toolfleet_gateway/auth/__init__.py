"""Finds out who sends a request, and how much they may send."""
