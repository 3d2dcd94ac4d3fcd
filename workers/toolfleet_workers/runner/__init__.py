"""Runs one call: middleware around an executor, one call in, one attempt out."""
