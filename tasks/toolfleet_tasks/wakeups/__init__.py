"""Delivers the wake-ups of jobs that have ended: an outbox, its sender, and a stream for readers."""
