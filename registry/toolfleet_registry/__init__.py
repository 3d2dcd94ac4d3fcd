"""Knows what tools exist, who may see them, and how a model sees them. Knows no broker.

PYTEST_DONT_REWRITE: what a pytest plugin's package has imported, pytest would else warn of.
"""
