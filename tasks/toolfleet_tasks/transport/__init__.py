"""Takes messages out of Redis for Celery's worker, without ever waiting."""
