"""Provides fixtures for the tests of modules and agents: see `testing/plugin.py`. Every pytest loads this package, so it imports nothing."""
