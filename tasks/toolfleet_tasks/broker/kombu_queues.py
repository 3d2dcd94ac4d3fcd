"""Declares queues to kombu, in the same words in every process."""

from kombu.entity import Exchange, Queue


def make_queue(name: str) -> Queue:
    """The queue of that name."""
    return Queue(name, Exchange("toolfleet", type="direct"), routing_key=name)
