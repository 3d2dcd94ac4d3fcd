"""Runs one call in a worker: its claim, attempts, and one result."""
