"""Serves tools as a module: functions become tools, and a module an ASGI app. Knows no broker.

PYTEST_DONT_REWRITE: what a pytest plugin's package has imported, pytest would else warn of.
"""
