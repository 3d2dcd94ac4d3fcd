"""Serves the fleet to others from this process."""
