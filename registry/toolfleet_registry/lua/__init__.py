"""Holds the scripts that run inside Redis: each does all of its work at once, or nothing."""
