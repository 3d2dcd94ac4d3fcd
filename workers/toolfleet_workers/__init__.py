"""How one call is run: the pool, the middleware around an executor, and the processes of a fleet."""
