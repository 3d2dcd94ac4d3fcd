"""Counts the messages that wait in a queue, where only the broker itself can be asked, and that takes a while."""

import threading
from dataclasses import dataclass, field

from kombu.connection import Connection

from toolfleet_registry.errors import BrokerUnavailable
from toolfleet_registry.redis.redis_errors import reason_of
from toolfleet_registry.time import machine_clock

_POLL_SECONDS = 1.0  # between two questions for the same queue
_SURE_SECONDS = 0.1  # the same, while it seems to be full: what was published here may have been taken long ago


@dataclass(slots=True)
class _Backlog:
    """`waiting` as the broker said at `read_at`, and with what was published here since."""

    waiting: int = 0
    read_at: float = -_POLL_SECONDS
    lock: threading.Lock = field(default_factory=threading.Lock)


class Backlogs:
    """What is known of the queues. For several threads: one of them asks, and the others take what is known."""

    def __init__(self) -> None:
        self._known: dict[str, _Backlog] = {}

    def of(self, queue: str, connection: Connection, *, limit: int) -> int:
        """How many wait now, as far as is known; at `limit` it is asked again. Raises `BrokerUnavailable` without an answer."""
        backlog = self._known.setdefault(queue, _Backlog())
        age = machine_clock.monotonic() - backlog.read_at
        is_old = age >= (_SURE_SECONDS if backlog.waiting >= limit else _POLL_SECONDS)
        if is_old and backlog.lock.acquire(blocking=False):
            try:
                backlog.waiting = _asked(queue, connection)
                backlog.read_at = machine_clock.monotonic()
            finally:
                backlog.lock.release()
        return backlog.waiting

    def add(self, queue: str) -> None:
        """One more was published here."""
        if queue in self._known:
            self._known[queue].waiting += 1


def _asked(queue: str, connection: Connection) -> int:
    try:
        # A channel of its own: RabbitMQ closes the one on which it is asked for a queue that is not there.
        with connection.channel() as channel:
            found = channel.queue_declare(queue=queue, passive=True)
    except connection.channel_errors:  # there is no such queue: with Redis that is an empty one
        return 0
    except Exception as exc:  # whatever kombu and its transports raise
        raise BrokerUnavailable(reason_of(exc, "no answer"), passes=True) from exc
    return int(found.message_count)
