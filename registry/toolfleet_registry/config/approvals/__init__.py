"""Declares by which channels approvals are asked for and decided outside of the fleet."""
