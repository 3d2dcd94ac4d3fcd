"""Asks the gateway's own routes, as a client of it would."""
