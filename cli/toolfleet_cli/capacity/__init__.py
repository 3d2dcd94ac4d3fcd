"""Counts how many processes a load needs, by what a call was measured to cost."""
