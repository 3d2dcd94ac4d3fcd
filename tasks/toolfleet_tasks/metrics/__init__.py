"""Answers for a process's own metrics, and reads those of the whole fleet out of Redis."""
