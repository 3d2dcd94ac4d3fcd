"""Runs coroutines under Celery's synchronous code, and blocking code beside an event loop."""
