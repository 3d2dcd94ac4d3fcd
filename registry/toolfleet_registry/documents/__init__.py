"""Keeps the revisioned documents that operators change: API keys and agents' profiles, in memory, in Redis, or in SQL."""
