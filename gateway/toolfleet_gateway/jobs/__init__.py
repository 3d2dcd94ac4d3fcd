"""Starts, shows and cancels jobs of those who come in over HTTP."""
