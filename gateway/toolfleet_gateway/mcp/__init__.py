"""Serves the fleet to clients of the Model Context Protocol."""
