"""Reads what browsers send, and sends files and headers."""
