"""Asks modules what they offer, and judges what may come in."""
