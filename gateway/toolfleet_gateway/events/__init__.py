"""Tells those who come in over HTTP what happens to tools and modules."""
