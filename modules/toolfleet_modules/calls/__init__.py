"""Reads a call's request, runs its tool once, and builds its reply."""
