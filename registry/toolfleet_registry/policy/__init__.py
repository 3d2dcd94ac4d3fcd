"""Decides who may call what, under which limits, and what is kept of it."""
