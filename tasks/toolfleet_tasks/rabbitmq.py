"""Connects to RabbitMQ without blocking reads, during which a worker's loop would stand still.

py-amqp reads its socket repeatedly for a frame that has begun to arrive, although the socket does not block, or has
blocked for its time-out. It waits for an answer to each change of the prefetch count, and after a reconnect Celery
changes it with each call that ends.
"""

import functools
from collections.abc import Callable
from ssl import SSLWantReadError
from typing import Any

from amqp import spec
from amqp.transport import SSLTransport, TCPTransport
from kombu.transport import pyamqp


class _Tcp(TCPTransport):  # type: ignore[misc] # py-amqp ships no types
    _quick_recv: Callable[[int], bytes]

    def _setup_transport(self) -> None:
        super()._setup_transport()
        self._quick_recv = functools.partial(_received, self._quick_recv)


class _Tls(SSLTransport):  # type: ignore[misc] # as above
    _quick_recv: Callable[[int], bytes]

    def _setup_transport(self) -> None:
        super()._setup_transport()
        self._quick_recv = functools.partial(_received, self._quick_recv)


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
    """kombu's for `amqp`, with these connections."""

    Connection = _Connection


class RabbitMqTlsTransport(pyamqp.SSLTransport):
    """kombu's for `amqps`, with these connections."""

    Connection = _Connection


def _received(receive: Callable[[int], bytes], octets: int) -> bytes:
    try:
        return receive(octets)
    except (BlockingIOError, SSLWantReadError) as exc:  # what has come is kept for the next try
        raise TimeoutError("RabbitMQ has not sent the rest yet") from exc
