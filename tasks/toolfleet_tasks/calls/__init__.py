"""Prepares a call, and holds what its caller may ask of it."""
