"""Tells the fleet's time, and until when an attempt may begin."""
