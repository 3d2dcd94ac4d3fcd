"""Surrounds every call: one concern a file; none knows another."""
