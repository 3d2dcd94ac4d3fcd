"""Finds tools that a model calls by tags in its text."""
