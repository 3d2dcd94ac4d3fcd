"""Reads how the fleet is doing, for all who watch."""
