"""Writes, signs and reads what travels: Celery's messages, ids, and results that the fleet words itself."""
