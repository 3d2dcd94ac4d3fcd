"""Offers the fleet's tools to agent frameworks, to each in its own form."""
