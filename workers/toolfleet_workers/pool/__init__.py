"""Runs calls in Celery's worker on asyncio, many at once in one process."""
