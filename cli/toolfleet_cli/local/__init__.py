"""Runs a whole fleet on one machine as child processes."""
