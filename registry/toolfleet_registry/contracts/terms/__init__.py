"""Describes under which terms a call travels: how often it may be made, and how often tried."""
