"""Asks workers, queues and Redis what the doctor wants to know, each question with a deadline."""
