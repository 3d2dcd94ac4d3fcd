"""Checks a fleet, and says what is wrong with it, why that matters, and how to fix it."""
