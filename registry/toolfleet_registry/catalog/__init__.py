"""Knows which tools exist now, and which of them a caller may use."""
