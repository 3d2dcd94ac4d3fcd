"""Reads a request to a module, says who sends it, and writes its reply."""
