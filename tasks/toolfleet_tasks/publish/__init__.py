"""Writes calls and the fleet's own tasks to their queues."""
