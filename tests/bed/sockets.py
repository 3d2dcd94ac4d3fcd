"""What sockets do in the bed: each belongs to the site that made it, writes are counted, and code that blocks waits in its greenlet."""

import errno
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from bed import settling, trace
from bed.greenlets import wait_for_file
from bed.site import Killed, here
from toolfleet_tasks.greenlet_bridge import in_bridge

_BUFFER = 1 << 20
_MOST_USED_PORTS = 1_000  # one after the other

ports: "Iterator[int] | None" = None
"""The ports of sockets that ask for any, or connect without one. `None`: the kernel chooses."""
real_init = socket.socket.__init__
real_send: Any = socket.socket.send
real_sendall: Any = socket.socket.sendall
real_sendmsg: Any = socket.socket.sendmsg
real_bind = socket.socket.bind
real_connect = socket.socket.connect
real_close = socket.socket.close
real_shutdown = socket.socket.shutdown
real_recv: Any = socket.socket.recv
real_recv_into: Any = socket.socket.recv_into


def init(self: socket.socket, *args: Any, **options: Any) -> None:
    """Implements `socket.__init__`."""
    real_init(self, *args, **options)
    if (site := here()) is not None:
        site.sockets.add(self)
        if self.family == socket.AF_INET:  # what is written at once arrives at once
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)


def send(self: socket.socket, data: Any, *flags: Any) -> Any:
    """Implements `socket.send`."""
    return _write(self, data, lambda left: real_send(self, left, *flags))


def sendall(self: socket.socket, data: Any, *flags: Any) -> None:
    """Implements `socket.sendall`."""
    _write(self, data, lambda left: real_sendall(self, left, *flags))


def sendmsg(self: socket.socket, buffers: Any, *more: Any) -> Any:
    """Implements `socket.sendmsg`."""
    parts = list(buffers)
    if (site := here()) is None or (site.dies_at is None and not site.is_dead):
        return _write(self, parts, lambda _: real_sendmsg(self, parts, *more))
    return _write(self, b"".join(parts), lambda left: real_send(self, left))


def recv(self: socket.socket, *args: Any) -> Any:
    """Implements `socket.recv`."""
    _wait_to_read(self)
    return real_recv(self, *args)


def recv_into(self: socket.socket, *args: Any) -> Any:
    """Implements `socket.recv_into`."""
    _wait_to_read(self)
    return real_recv_into(self, *args)


def bind(self: socket.socket, address: Any) -> None:
    """Implements `socket.bind`."""
    if ports is None or self.family != socket.AF_INET or address[1]:
        real_bind(self, address)
    else:
        _bind_to_next(self, address[0], ports)


def connect(self: socket.socket, address: Any) -> None:
    """Implements `socket.connect`.

    A port that the kernel chooses by chance may be one that the server still remembers, of a connection that has ended: it
    takes the new one only at the second try, some milliseconds of real time later.
    """
    settling.before_write(self, to=address)
    if ports is not None and self.family == socket.AF_INET and not self.getsockname()[1]:
        _bind_to_next(self, "", ports)
    site = here()
    trace.note(f"{site and site.host} connects to {address[1]}")
    real_connect(self, address)


def _bind_to_next(self: socket.socket, host: str, ports: Iterator[int]) -> None:
    for port in islice(ports, _MOST_USED_PORTS):
        with suppress(OSError):  # another socket has it
            real_bind(self, (host, port))
            return
    raise OSError(errno.EADDRINUSE, "no port is free")


def close(self: socket.socket) -> None:
    """Implements `socket.close`."""
    if self.fileno() >= 0:
        settling.before_write(self)
    real_close(self)


def shutdown(self: socket.socket, how: int) -> None:
    """Implements `socket.shutdown`."""
    settling.before_write(self)
    real_shutdown(self, how)


def _write(self: socket.socket, data: Any, send: Callable[[Any], Any]) -> Any:
    site = here()
    whole = b"".join(data) if isinstance(data, list) else data
    settling.before_wait(self, whole)
    settling.before_write(self, len(whole))
    if site is None or not site.carries:
        trace.note(f"{site and site.host} writes {len(whole)} bytes {zlib.crc32(whole):08x}", bytes(whole))
    if site is None or self not in site.sockets:
        return send(data)
    left = site.written(data)
    sent = None if left is None else send(left)
    if not site.is_dead:
        return sent
    if self.gettimeout() != 0:  # it would wait for an answer
        raise Killed
    return len(data)


def _wait_to_read(self: socket.socket) -> None:
    settling.settle_if_asked()  # whether a server has answered already is not for its speed to decide
    limit = self.gettimeout()
    if limit != 0 and in_bridge() and not wait_for_file(self.fileno(), timeout=limit):
        raise TimeoutError("timed out")
