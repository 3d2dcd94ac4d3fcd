"""Checks a fleet, and says what is wrong with it, why that matters, and what mends it."""
