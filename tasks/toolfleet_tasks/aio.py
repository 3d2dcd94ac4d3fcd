"""Cancels tasks for certain, announces a shutdown, survives forks, and runs blocking code beside the event loop."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakMethod, WeakSet

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

T = TypeVar("T")

_AGAIN_SECONDS = 0.5  # between two cancellations of a task: its cleaning up needs less

_FORKED = set[WeakMethod[Callable[[], None]]]()  # called in each forked child
_LEFT_BEHIND: list[object] = []  # of the parent's, never cleaned up in a child


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all of them have ended.

    On Python 3.11 one cancellation can get lost: `asyncio.wait_for`, with which redis-py waits, drops one that comes
    together with its answer, and a task group drops one that comes just when one of its tasks fails.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_SECONDS)


def is_wanted() -> bool:
    """Return whether the running task is not cancelled: for loops in a task group, which cancels only once."""
    task = asyncio.current_task()
    return task is None or not task.cancelling()


async def in_abandoned_thread(ask: Callable[[], T], *, seconds: float) -> T:
    """Run `ask` in a thread and return its result: for kombu and Celery, which have no deadline for an answer.

    Raises `TimeoutError` after so many seconds; the thread then goes on by itself.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)  # type: ignore[arg-type] # `ask` has returned it
        else:
            answer.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = ask()
        except Exception as exc:  # noqa: BLE001 - it is raised where it is awaited
            error = exc
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True).start()
    async with asyncio.timeout(seconds):
        return await answer


class Closing:
    """The state of a shutdown, and callbacks for it. Thousands can wait; adding and removing one costs the same for any number."""

    def __init__(self) -> None:
        self.has_begun = False
        self._waiting: dict[int, Callable[[], None]] = {}
        self._last = 0

    def begin(self) -> None:
        """Call all callbacks, once."""
        self.has_begun = True
        waiting, self._waiting = self._waiting, {}
        for tell in waiting.values():
            tell()

    def tell(self, heard: Callable[[], None]) -> int:
        """Have `heard` called when the shutdown begins, at once if it has. Returns a number for `forget`."""
        self._last += 1
        if self.has_begun:
            heard()
        else:
            self._waiting[self._last] = heard
        return self._last

    def forget(self, number: int) -> None:
        """Drop the callback for which `tell` returned this number."""
        self._waiting.pop(number, None)


def call_after_fork(forked: Callable[[], None]) -> None:
    """Have an object's method called in every forked child, as long as the object lives.

    It is called right after the fork, while nothing else runs in the child: the object is a copy there.
    """
    _FORKED.add(WeakMethod(forked, _FORKED.discard))


def leave_behind(thing: object) -> None:
    """Keep an object that must not be cleaned up for as long as this process lives."""
    _LEFT_BEHIND.append(thing)


class ForkedSockets:
    """The sockets of one loop's connections, which a forked child leaves alone: its parent goes on using them.

    A child has copies of all of the parent's objects. When asyncio cleans up a copied transport, it takes its socket
    out of the epoll instance, which parent and child share, and the parent never hears of that socket again.
    """

    def __init__(self) -> None:
        self._connections: WeakSet[AbstractConnection] = WeakSet()
        call_after_fork(self.forked)

    def watched(self, connect: "Callable[[], AbstractConnection]") -> "Callable[[], AbstractConnection]":
        """Return a `connect` that has its connections cut in a forked child."""

        def make() -> "AbstractConnection":
            connection = connect()
            self._connections.add(connection)
            return connection

        return make

    def cut(self) -> bool:
        """Close the sockets without a word to Redis, to a loop or to another process that shares them.

        Their numbers stay taken, so that remaining references do no harm. Returns whether there were any.
        """
        numbers = [number for connection in list(self._connections) if (number := _socket_number(connection)) >= 0]
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


def _socket_number(connection: "AbstractConnection") -> int:
    writer = connection._writer  # noqa: SLF001 - redis-py shows it nowhere
    socket = None if writer is None else writer.get_extra_info("socket")
    return -1 if socket is None else int(socket.fileno())


def _call_forked() -> None:
    for each in list(_FORKED):
        if (forked := each()) is not None:
            forked()


os.register_at_fork(after_in_child=_call_forked)
