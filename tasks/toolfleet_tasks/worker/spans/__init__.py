"""Begins the spans of calls in a worker."""
