"""Declares what a fleet tells of itself to those who watch it."""
