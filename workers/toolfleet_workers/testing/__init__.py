"""Fixtures for the tests of modules and agents: see `plugin.py`. Every pytest loads this package, so it imports nothing."""
