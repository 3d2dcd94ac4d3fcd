"""Carries a call: queues, retry, results, and the client that an agent imports.

PYTEST_DONT_REWRITE: what a pytest plugin's package has imported, pytest would else warn of.
"""
