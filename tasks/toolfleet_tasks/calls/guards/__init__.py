"""Applies what agents' profiles put around a call in its agent's own process."""
