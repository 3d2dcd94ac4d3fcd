"""Reaches a broker through kombu: its connections, queues and errors."""

import contextlib
from collections.abc import Generator
from contextlib import contextmanager

from celery import Celery
from kombu.common import maybe_declare
from kombu.connection import Connection
from kombu.entity import Exchange, Queue

from toolfleet_registry.errors import BrokerUnavailable
from toolfleet_registry.redis.servers import reason_of

# What py-amqp is told, and other transports ignore. Without the first, "sent" means "lies in a buffer of this machine";
# without the others a broker that is frozen holds a thread for ever, and the process with it at its end.
_OPTIONS = {"confirm_publish": True, "read_timeout": 2, "write_timeout": 2}  # seconds


def make_queue(name: str) -> Queue:
    """The queue of that name."""
    return Queue(name, Exchange("toolfleet", type="direct"), routing_key=name)


class KombuConnections:
    """A pool of idle connections. One that failed is discarded: it might still return an old answer."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._idle: list[Connection] = []
        self._is_closed = False

    @contextmanager
    def one(self, queue: str | None = None) -> Generator[Connection]:
        """A connection that has just worked, to a broker that has the queue. Raises `BrokerUnavailable` if there is none."""
        connection = self._take()
        try:
            try:
                self._make_ready(connection, queue)
            except Exception as exc:  # kombu and its transports raise anything
                raise BrokerUnavailable(reason_of(exc, "no answer"), passes=True) from exc
            yield connection
        except BaseException:
            connection.collect()
            raise
        self._idle.append(connection)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Drop idle connections now, and later ones when they are given back.

        Sends no goodbye: a frozen broker would not answer it.
        """
        self._is_closed = True
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread closes, too
                self._idle.pop().collect()

    def _take(self) -> Connection:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return confirming(self._app)

    def _make_ready(self, connection: Connection, queue: str | None) -> None:
        if not _is_alive(connection):
            connection.collect()
        connection.ensure_connection(max_retries=max(len(connection.alt) - 1, 0), interval_start=0)
        if queue is not None:
            maybe_declare(self._queue(queue), connection.default_channel)

    def _queue(self, name: str) -> Queue:
        """Return the queue of a module, which may have come after the app was made: the publisher has judged its call."""
        queues = self._app.amqp.queues
        if name not in queues:
            queues.add(make_queue(name))
        queue: Queue = queues[name]
        return queue


def confirming(app: Celery) -> Connection:
    """A connection of an app's, not made yet, over which to publish is to have the broker's word that it has the message."""
    options = {**(app.conf.broker_transport_options or {}), **_OPTIONS}
    connection: Connection = app.connection_for_write().clone(transport_options=options)
    return connection


def _is_alive(connection: Connection) -> bool:
    """Return whether a connection to RabbitMQ is still alive: the notice of its end is in the socket, unread.

    Other transports find out, and reconnect, when they send.
    """
    if not connection.connected or connection.transport.driver_type != "amqp":
        return True
    try:
        while True:
            connection.drain_events(timeout=0)
    except TimeoutError:
        return True
    except connection.connection_errors + connection.channel_errors:
        return False
