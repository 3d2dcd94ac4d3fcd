"""Answers for the metrics of the gateway and of the fleet, and says how many workers a lane needs."""
