"""Offers the fleet's tools to agent frameworks, in each one's own form."""
