"""Answers canaries in a worker, so that one sees that a queue is served."""
