"""Answers every command, one noun a file, and runs what `up`, `host` and the servers run."""
