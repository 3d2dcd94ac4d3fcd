"""Keeps one record for each call: who runs it, and which result is its one result."""
