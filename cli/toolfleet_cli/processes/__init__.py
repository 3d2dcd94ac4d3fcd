"""Starts, watches and checks the processes of a fleet."""
