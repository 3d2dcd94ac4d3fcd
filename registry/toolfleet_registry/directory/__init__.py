"""Keeps which modules there are in the fleet's Redis, and follows changes."""
