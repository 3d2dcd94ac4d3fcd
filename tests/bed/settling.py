"""Knows which servers have been written to, and waits until they have done all of it: they are processes of their own.

A server that is asleep takes what comes over several connections in the order of its arrival. While it works it may not: the
system looks again at the connections that it has just read, and those come first if there is more. So that two runs of one
seed go alike, at most one connection at a time has anything that its server has not read.

Redis ends waits that are over at the same millisecond in the order of its clients' addresses in memory, and then does what
those clients have sent after their `BRPOP`. So no two of them are over at the same millisecond.
"""

import fcntl
import re
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any

from bed import clock

servers: dict[int, Callable[[int], None]] = {}
"""By their ports, what returns when the server has gone so many rounds, and its answers are on their way."""
_BYTES_A_ROUND = 8_192  # Redis reads twice as many of one connection, if they have arrived
_ANSWERED_A_ROUND = 65_536  # bytes of one connection's answers, as Redis writes them
_writer: socket.socket | None = None
"""The connection that has been written to since all servers have settled."""
_unread = 0  # at most so many bytes of it
_turns = 0  # how often it has connected, or ended
_BRPOP = re.compile(rb"\*(\d+)\r\n\$5\r\nBRPOP\r\n")
_MILLISECOND = 0.001
_ends: set[int] = set()
"""At which milliseconds waits will be over, or would have been."""


def before_write(connection: socket.socket, size: int = 0, *, to: Any = None) -> None:
    """Note that so many bytes are about to be written, if it is to a server. `to`: that it connects; without any: that it ends."""
    global _writer, _unread, _turns  # noqa: PLW0603 - there is one order
    if _port_of(connection if to is None else to) not in servers:
        return
    if _writer is not connection:
        settle_if_asked()
    _writer = connection
    _unread += size
    _turns += size == 0


def before_wait(connection: socket.socket, data: Any) -> None:
    """Move the clock, if a `BRPOP` is about to be sent to a server, until it will be over at a millisecond of its own."""
    if (found := _BRPOP.search(data)) is None or _port_of(connection) not in servers:
        return
    count = 2 * (int(found[1]) - 1)  # lines: each word comes after its length
    lines = bytes(data[found.end() :]).split(b"\r\n", count)
    if len(lines) <= count:
        return  # its client dies in the middle of it
    wait = int(float(lines[count - 1]) * 1000)
    while clock.milliseconds() + wait in _ends:
        settle_if_asked()  # what was written is of the time before
        clock.move(_MILLISECOND)
        settle()
    _ends.difference_update([end for end in _ends if end < clock.milliseconds()])
    _ends.add(clock.milliseconds() + wait)


def settle() -> None:
    """Return when every server has done all that was sent to it.

    It answers in rounds: with its answer to the second question, the answers to all that came before the first are sent. Of
    long answers a part comes in each round. A connection begins, and ends, in a round of its own; in its last one the server ends
    it after all answers.
    """
    global _writer, _unread, _turns
    writer, rounds, answered = _writer, 2 + _turns + _unread // _BYTES_A_ROUND, 0
    _writer, _unread, _turns = None, 0, 0
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
