"""Decides what the holder of a key may do as an operator."""
