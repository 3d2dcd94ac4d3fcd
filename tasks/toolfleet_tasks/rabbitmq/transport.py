"""Connects to RabbitMQ without ever waiting for the rest of a frame: where none comes any more, a worker's loop would stand still for ever.

py-amqp asks its socket again and again for a frame that has begun to come, though the socket does not wait, or has waited
for as long as it may.
"""

import functools
from collections.abc import Callable
from ssl import SSLWantReadError
from typing import Any

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


class _Connection(pyamqp.Connection):
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
