"""Keeps jobs: their records, the state machine by which they move, their schedules, and the events of their ends."""
