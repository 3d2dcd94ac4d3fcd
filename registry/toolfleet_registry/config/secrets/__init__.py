"""Reads secrets that settings name."""
