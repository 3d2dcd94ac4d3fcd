"""Knows which servers have been written to, and waits until they have done all of it: they are processes of their own.

A server that is asleep takes what comes over several connections in the order of its arrival. While it works it may not: the
system looks again at the connections that it has just read, and those come first if there is more. So that two runs of one
seed go alike, at most one connection at a time has anything that its server has not read.
"""

import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any

servers: dict[int, Callable[[int], None]] = {}
"""By their ports, what returns when the server has gone so many rounds, and its answers are on their way."""
_BYTES_A_ROUND = 8_192  # Redis reads twice as many of one connection, if they have arrived
_ANSWERED_A_ROUND = 65_536  # bytes of one connection's answers, as Redis writes them
_writer: socket.socket | None = None
"""The connection that has been written to since all servers have settled."""
_unread = 0  # at most so many bytes of it


def before_write(connection: socket.socket, size: int = 0, *, to: Any = None) -> None:
    """Note that so many bytes are about to be written, if it is to a server. `to`: that it connects; without any: that it ends."""
    global _writer, _unread  # noqa: PLW0603 - there is one order
    if _port_of(connection if to is None else to) not in servers:
        return
    if _writer is not connection:
        settle_if_asked()
    _writer = connection
    _unread += size


def settle() -> None:
    """Return when every server has done all that was sent to it.

    It answers in rounds: with its answer to the second question, the answers to all that came before the first are sent. Of
    long answers a part comes in each round.
    """
    global _writer, _unread
    writer, rounds, answered = _writer, 2 + _unread // _BYTES_A_ROUND, 0
    _writer, _unread = None, 0
    while rounds:
        for settle_one in tuple(servers.values()):
            settle_one(rounds)
        answered, before = _answered_bytes(writer), answered
        rounds = 1 if answered >= _ANSWERED_A_ROUND and answered > before else 0


def settle_if_asked() -> None:
    """Settle if anything was written to a server since then."""
    if _writer is not None:
        settle()


def _answered_bytes(connection: socket.socket | None) -> int:
    """Return how many bytes have come that were not read yet."""
    if connection is None or connection.fileno() < 0:
        return 0
    found: int = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, b"\0" * 4))[0]
    return found


def _port_of(peer: Any) -> int:
    """Return the port of an address, or of a connection's other end."""
    try:
        return int((peer.getpeername() if isinstance(peer, socket.socket) else peer)[1])
    except (OSError, IndexError, ValueError):  # not connected, or no address of the internet's
        return 0
