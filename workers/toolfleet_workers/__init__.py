"""Runs one call: the pool, and the middleware around an executor.

PYTEST_DONT_REWRITE: what a pytest plugin's package has imported, pytest would else warn of.
"""
