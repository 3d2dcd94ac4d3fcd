"""Adds header fields to requests to modules: checks which may be set, and keeps their values unseen."""
