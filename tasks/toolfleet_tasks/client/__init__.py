"""Holds what an agent imports: the fleet, and its synchronous face."""
