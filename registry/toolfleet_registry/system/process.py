"""Keeps what an operating system process has once (its name, its threads, its worker's runtime), and hides its secrets.

A program has one `Process`, and need not know. Only if several members of a fleet run in one interpreter, each has its
own: the code that starts them calls `enter` in the context in which each of them then runs.
"""

import functools
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, TypeVar
from weakref import ref

from toolfleet_registry.errors import SettingsError

T = TypeVar("T")

_PR_SET_DUMPABLE = 4  # prctl(2)


@functools.cache
def own_pid() -> int:
    """Return the number of this operating system process, for which the system is asked once."""
    return os.getpid()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=own_pid.cache_clear)


class Process:
    """The state that an operating system process has once. Give a `name` if the interpreter has several.

    `thread` and `event` are the classes of its threads and events: a simulation has others than Python's.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        thread: type[threading.Thread] = threading.Thread,
        event: type[threading.Event] = threading.Event,
    ) -> None:
        self._name = name
        self._thread = thread
        self.event = event
        """Makes an event that is not set."""
        self.worker: Any = None
        """The worker's runtime while its pool runs. Set by `toolfleet_tasks.worker_runtime`, which knows its type."""
        self.calls: Any = None
        """The counts of calls, while they are taken. Set by `toolfleet_registry.metrics`, which knows its type."""
        self.timers = dict[ref[Any], Any]()
        """The shared timers of each event loop, by a weak reference to it. Set by `toolfleet_registry.system.shared_timers`."""
        self._parts = dict[Callable[[], Any], Any]()

    @property
    def name(self) -> str:
        """The process's name in the fleet: `host:pid`, a fork has its own."""
        return self._name or f"{socket.gethostname()}:{own_pid()}"

    def part(self, make: Callable[[], T]) -> T:
        """Return what `make` makes for this process: with the first call, and the same ever after. Any thread may ask."""
        made: T | None = self._parts.get(make)
        return self._parts.setdefault(make, make()) if made is None else made

    def thread(self, target: Callable[[], object], *, name: str) -> threading.Thread:
        """Make a daemon thread that runs `target` in this process."""

        def run() -> None:
            enter(self)
            target()

        return self._thread(target=run, name=name, daemon=True)


_only = Process()
_here = ContextVar("toolfleet_process", default=_only)  # so that threads without a context find it as well

this_process: Callable[[], Process] = _here.get
"""Return the one that the present context runs in. The variable's own method: it is asked several times a call."""


def enter(process: Process) -> Token[Process]:
    """Have the present context, and everything started from it, run in `process`."""
    return _here.set(process)


def hide_process() -> None:
    """Allow only root to read this process's environment, memory and open files, or to trace it.

    Its children are not hidden.

    The price: it leaves no core dump, and debuggers and profilers need root. On Linux; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        import ctypes  # for those who hide

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def listening_socket(address: str, port: int) -> socket.socket:
    """Open a bound socket; port 0 is any free port. Raises `SettingsError` if the address cannot be used."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio turns off Nagle's algorithm only for sockets that name their protocol; events would wait 40 ms for an acknowledgement.
    listener = socket.socket(family, proto=socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
    except OSError as exc:
        listener.close()
        raise SettingsError(f"Nothing can listen at {address}:{port}: {exc.strerror or exc}.") from exc
    return listener
