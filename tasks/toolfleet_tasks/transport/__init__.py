"""Puts messages into their queues, and takes them out of Redis for Celery's worker without ever waiting."""
