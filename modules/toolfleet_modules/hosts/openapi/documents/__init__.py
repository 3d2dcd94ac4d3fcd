"""Reads OpenAPI documents: where they come from, which operations they have, and what those take and return."""
