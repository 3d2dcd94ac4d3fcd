"""Makes HTTP requests of calls, and replies of what services answer."""
