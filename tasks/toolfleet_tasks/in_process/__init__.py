"""Runs the functions of tags in this process, without a fleet."""
