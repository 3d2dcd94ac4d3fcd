"""Writes, signs and reads messages: Celery's envelopes, the ids of calls and jobs, and the results that the fleet itself gives."""
