"""Starts and ends the workers of a lane on one machine, as its calls need them."""
