"""Decides whose turn it is: in an agent between users, in a worker between queues."""
