"""Applies agents' profiles: to what is listed, to what is published, and to what a worker runs."""
