"""Tells the fleet's time and this machine's, and until when an attempt may begin."""
