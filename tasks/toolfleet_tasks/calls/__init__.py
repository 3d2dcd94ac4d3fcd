"""Prepares calls, publishes them once that is possible, and follows them for their callers."""
