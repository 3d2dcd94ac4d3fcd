"""Tells those who come in over HTTP how the jobs of a conversation have ended."""
