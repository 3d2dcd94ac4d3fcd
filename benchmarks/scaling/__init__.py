"""Measures how a lane is scaled along a day's load."""
