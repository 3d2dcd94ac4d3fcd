"""Validates values by schemas: compiled once, bounded in work, and worded so that no value is repeated."""
