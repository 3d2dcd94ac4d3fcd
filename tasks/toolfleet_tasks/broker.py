"""Reaches a broker through kombu: its connections, queues and errors. RabbitMQ is read without blocking.

py-amqp reads its socket repeatedly for a frame that has begun to arrive, although the socket does not block, or has
blocked for its time-out. It waits for an answer to each change of the prefetch count, and after a reconnect Celery
changes it with each call that ends.
"""

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from ssl import SSLWantReadError
from typing import Any

from amqp import spec
from amqp.transport import SSLTransport, TCPTransport
from celery import Celery
from kombu.common import maybe_declare
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.transport import pyamqp

from toolfleet_registry.errors import BrokerUnavailable
from toolfleet_registry.redis.servers import reason_of

_NOT_FOUND = "404"  # AMQP's code of a queue that does not exist, which kombu's own transports have as a text

# What py-amqp is told, and other transports ignore. Without the first, "sent" means "lies in a buffer of this machine";
# without the others a broker that is frozen holds a thread for ever, and the process with it at its end.
_OPTIONS = {"confirm_publish": True, "read_timeout": 2, "write_timeout": 2}  # seconds


class _Quick:
    """Reads from a socket of py-amqp only what has come."""

    _quick_recv: Callable[[int], bytes]

    def _setup_transport(self) -> None:
        super()._setup_transport()  # type: ignore[misc] # py-amqp's transport
        self._quick_recv = functools.partial(_received, self._quick_recv)


class _Tcp(_Quick, TCPTransport):
    pass


class _Tls(_Quick, SSLTransport):
    pass


class _Channel(pyamqp.Channel):
    def basic_qos(self, prefetch_size: int, prefetch_count: int, a_global: bool, argsig: str = "lBb") -> None:  # noqa: FBT001 - py-amqp's order
        """Set how many messages may be unacknowledged.

        It holds for messages sent after it; its answer is read when it comes.
        """
        self.send_method(spec.Basic.Qos, argsig, (prefetch_size, prefetch_count, a_global))


class _Connection(pyamqp.Connection):
    Channel = _Channel

    def Transport(  # noqa: N802 - py-amqp's name, and its order
        self,
        host: str,
        connect_timeout: float,
        ssl: object = False,  # noqa: FBT002 - as there
        read_timeout: float | None = None,
        write_timeout: float | None = None,
        socket_settings: object = None,
        **more: Any,
    ) -> Any:
        """A TCP or TLS connection that is not made yet; all times in seconds."""
        times = {"connect_timeout": connect_timeout, "read_timeout": read_timeout, "write_timeout": write_timeout}
        more |= {**times, "socket_settings": socket_settings}
        return _Tls(host, ssl=ssl, **more) if ssl else _Tcp(host, **more)


class RabbitMqTransport(pyamqp.Transport):
    """kombu's transport for `amqp`, with these connections."""

    Connection = _Connection


class RabbitMqTlsTransport(pyamqp.SSLTransport):
    """kombu's transport for `amqps`, with these connections."""

    Connection = _Connection


def _received(receive: Callable[[int], bytes], octets: int) -> bytes:
    try:
        return receive(octets)
    except (BlockingIOError, SSLWantReadError) as exc:  # what has come is kept for the next try
        raise TimeoutError("RabbitMQ has not sent the rest yet") from exc


def make_queue(name: str) -> Queue:
    """Return the queue of that name."""
    return Queue(name, Exchange("toolfleet", type="direct"), routing_key=name)


class KombuConnections:
    """A pool of idle connections. One that failed is discarded: it might still return an old answer."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._idle: list[Connection] = []
        self._is_closed = False

    @contextmanager
    def one(self, queue: str | None = None) -> Generator[Connection]:
        """Return a connection that has just worked, to a broker that has the queue.

        Raises `BrokerUnavailable` if there is none.
        """
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
    """Return a connection of an app's, not made yet, over which the broker confirms each message."""
    options = {**(app.conf.broker_transport_options or {}), **_OPTIONS}
    connection: Connection = app.connection_for_write().clone(transport_options=options)
    return connection


def waiting_in(connection: Connection, queues: Sequence[str]) -> list[int]:
    """Return how many messages wait in each queue: none in a queue that there is not, as nothing has needed it yet.

    Uses channels of its own: RabbitMQ closes the one on which it is asked for such a queue.
    """
    found, channel = list[int](), None
    for queue in queues:
        channel = channel or connection.channel()
        try:
            found.append(int(channel.queue_declare(queue=queue, passive=True).message_count))
        except connection.channel_errors as exc:
            if str(getattr(exc, "reply_code", "")) != _NOT_FOUND:
                raise
            found.append(0)
            channel = None
    if channel is not None:
        channel.close()
    return found


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
