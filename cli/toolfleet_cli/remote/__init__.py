"""Asks a gateway over HTTP what commands otherwise ask Redis."""
