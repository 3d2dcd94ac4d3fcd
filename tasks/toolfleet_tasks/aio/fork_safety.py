"""Leaves the sockets and loops of a forked process's parent alone, which goes on using them.

The child has copies of all of the parent's objects. When asyncio cleans up a copied transport, it takes its socket out
of the epoll instance, which parent and child share, and the parent would never hear of that socket again.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakMethod, WeakSet

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection


def tell(forked: Callable[[], None]) -> None:
    """Have an object's method called in every forked child, as long as the object lives.

    It is called right after the fork, while nothing else runs in the child: the object is a copy there.
    """
    _REGISTERED.add(WeakMethod(forked, _REGISTERED.discard))


def leave_behind(thing: object) -> None:
    """Keep what may not be cleaned up, for as long as this process lives."""
    _LEFT_BEHIND.append(thing)


class Sockets:
    """The sockets of one loop's connections."""

    def __init__(self) -> None:
        self._connections: WeakSet[AbstractConnection] = WeakSet()
        tell(self.forked)

    def watched(self, connect: "Callable[[], AbstractConnection]") -> "Callable[[], AbstractConnection]":
        """`connect`, with an eye on what it makes."""

        def make() -> "AbstractConnection":
            connection = connect()
            self._connections.add(connection)
            return connection

        return make

    def cut(self) -> bool:
        """Close the sockets without a word to Redis, to a loop or to another process that shares them.

        Their numbers stay taken, so that remaining references do no harm. Returns whether there were any.
        """
        numbers = [number for connection in list(self._connections) if (number := _number_of(connection)) >= 0]
        if not numbers:
            return False
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            for number in numbers:
                os.dup2(nothing, number, inheritable=False)
        finally:
            os.close(nothing)
        return True

    def forked(self) -> None:
        """Leave the sockets to the parent."""
        self.cut()


_REGISTERED = set[WeakMethod[Callable[[], None]]]()
_LEFT_BEHIND: list[object] = []


def _number_of(connection: "AbstractConnection") -> int:
    writer = connection._writer  # noqa: SLF001 - redis-py shows it nowhere
    socket = None if writer is None else writer.get_extra_info("socket")
    return -1 if socket is None else int(socket.fileno())


def _tell_all() -> None:
    for each in list(_REGISTERED):
        if (forked := each()) is not None:
            forked()


os.register_at_fork(after_in_child=_tell_all)
