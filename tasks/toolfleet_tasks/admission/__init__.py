"""Decides whether a call may be published: limits, breaker, backlog, callers' limits."""
