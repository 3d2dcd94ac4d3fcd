"""Serves the console: pages for people who operate the fleet, in any browser."""
