"""Receives messages in Celery's consumer: by a shorter way than its own, where that makes no difference."""
