"""Defines what modules ask of those who call them, and how much of it there may be."""
