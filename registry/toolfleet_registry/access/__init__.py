"""Keeps the API keys of those who come in over HTTP, and says what the holder of each may do."""
