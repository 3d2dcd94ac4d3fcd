"""Prepares a call, publishes it as soon as it may be, and holds what its caller may ask of it."""
