"""Holds the adapters for agent frameworks, each in a module of its own, with an extra of its own."""
