"""Holds what every host has, whatever it serves: its app, who is told of changes, and secrets."""
