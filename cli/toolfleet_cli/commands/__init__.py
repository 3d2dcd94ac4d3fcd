"""Answers every command, one noun a file, and does the work of `up`, `host` and the servers."""
