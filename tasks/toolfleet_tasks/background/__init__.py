"""Keeps jobs going inside workers."""
