"""Declares the settings for what operators see of a fleet."""
