"""Reaches a broker through kombu: its connections, queues and errors."""
