"""Knows which servers have been written to, and waits until they have done all of it: they are processes of their own.

A server takes what comes over several connections in the order of its arrival, if it is asleep then and each connection is
written to once. So that two runs of one seed go alike, a connection is not written to again after another one before it has
settled.
"""

import socket
from collections.abc import Callable

servers: dict[int, Callable[[int], None]] = {}
"""By their ports, what returns when the server has gone so many rounds, and its answers are on their way."""
_BYTES_A_ROUND = 8_192  # Redis reads twice as many of one connection, if they have arrived
_written: dict[socket.socket, int] = {}
_last: socket.socket | None = None


def before_write(connection: socket.socket, size: int = 0) -> None:
    """Note that so many bytes are about to be written to a server, or that the connection ends."""
    global _last  # noqa: PLW0603 - there is one order
    if connection is not _last and connection in _written:
        settle()
    _written[connection] = _written.get(connection, 0) + size
    _last = connection


def settle() -> None:
    """Return when every server has done all that was sent to it.

    It answers in rounds: with its answer to the second question, the answers to all that came before the first are sent.
    """
    rounds = 2 + max(_written.values(), default=0) // _BYTES_A_ROUND
    _written.clear()
    for settle_one in tuple(servers.values()):
        settle_one(rounds)


def settle_if_asked() -> None:
    """Settle if anything was written to a server since then."""
    if _written:
        settle()
