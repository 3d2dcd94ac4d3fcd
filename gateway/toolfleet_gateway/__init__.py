"""Serves a fleet over HTTP, to programs in any language."""
