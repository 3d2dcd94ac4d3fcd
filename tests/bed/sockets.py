"""What sockets do in the bed: each belongs to the site that made it, writes are counted, and code that blocks waits in its greenlet."""

import socket
from collections.abc import Callable
from typing import Any

from bed.greenlets import wait_for_file
from bed.site import Killed, here
from toolfleet_tasks.aio.greenlet_bridge import in_bridge

real_init = socket.socket.__init__
real_send: Any = socket.socket.send
real_sendall: Any = socket.socket.sendall
real_sendmsg: Any = socket.socket.sendmsg
real_recv: Any = socket.socket.recv
real_recv_into: Any = socket.socket.recv_into

servers = set[int]()
"""The ports of the servers that have to be waited for, as they are processes of their own."""
_writes = 0


def writes() -> int:
    """Return how often this process has written to one of these servers."""
    return _writes


def init(self: socket.socket, *args: Any, **options: Any) -> None:
    """Implements `socket.__init__`."""
    real_init(self, *args, **options)
    if (site := here()) is not None:
        site.sockets.add(self)


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


def _write(self: socket.socket, data: Any, send: Callable[[Any], Any]) -> Any:
    global _writes  # noqa: PLW0603 - of the process
    _writes += _peer_of(self) in servers
    site = here()
    if site is None or self not in site.sockets:
        return send(data)
    left = site.written(data)
    sent = None if left is None else send(left)
    if not site.is_dead:
        return sent
    if self.gettimeout() != 0:  # it would wait for an answer
        raise Killed
    return len(data)


def _peer_of(self: socket.socket) -> int:
    try:
        return int(self.getpeername()[1])
    except (OSError, IndexError, ValueError):  # not connected, or no address of the internet's
        return 0


def _wait_to_read(self: socket.socket) -> None:
    limit = self.gettimeout()
    if limit != 0 and in_bridge() and not wait_for_file(self.fileno(), timeout=limit):
        raise TimeoutError("timed out")
