"""Delivers the news of jobs' ends: an outbox, its sender, and a stream for readers."""
