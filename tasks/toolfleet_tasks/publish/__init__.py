"""Writes calls and the fleet's own tasks to their queues: one port, over Redis or through kombu."""
