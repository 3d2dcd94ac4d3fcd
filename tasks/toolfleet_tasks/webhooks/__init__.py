"""Receives wake-ups in an agent's core, and acts on each once."""
