"""How one call is run: the pool, the middleware around an executor, and the processes of a fleet.

PYTEST_DONT_REWRITE: what a pytest plugin's package has imported, pytest would else warn of.
"""
