"""Reaches tools, one way to a file: over HTTP, in this process, or in the scheduler."""
