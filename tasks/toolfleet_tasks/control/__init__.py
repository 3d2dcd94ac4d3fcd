"""Checks, watches and steers Celery's processes: worker and beat."""
