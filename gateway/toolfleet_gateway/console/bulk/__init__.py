"""Handles many letters by a filter, step by step."""
