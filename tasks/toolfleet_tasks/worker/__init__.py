"""Gives Celery the task that runs a call in a worker."""
