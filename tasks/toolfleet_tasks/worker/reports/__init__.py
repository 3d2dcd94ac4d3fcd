"""Passes on what running calls report: how far they are, and what they log."""
