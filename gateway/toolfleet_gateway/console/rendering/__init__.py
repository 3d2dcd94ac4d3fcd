"""Writes pages out of templates, and forms out of schemas."""
