"""Describes pages, and requests of who is signed in."""
