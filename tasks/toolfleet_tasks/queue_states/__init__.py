"""Pauses, drains and resumes queues: what operators have said of them, and who follows that."""
