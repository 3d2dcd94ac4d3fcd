"""Begins the spans of messages with calls, and says how each process is traced."""
