"""Rewrites JSON Schemas for providers that take only parts of it."""
