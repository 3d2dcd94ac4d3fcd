"""Answers the commands about queues: how each is, and what operators do to it."""
