"""Keeps what an operating system process has once: its name, its threads, its worker's runtime.

A program has one `Process`, and need not know. Only if several members of a fleet run in one interpreter, each has its
own: the code that starts them calls `enter` in the context in which each of them then runs.
"""

import os
import socket
import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class _Thread(Protocol):
    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class _Event(Protocol):
    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Threading(Protocol):
    """Makes threads and events. The module `threading` implements it; a simulation has another implementation."""

    def Thread(self, *, target: Callable[[], object], name: str, daemon: bool) -> _Thread:  # noqa: N802 - as `threading` has it
        """Make a thread that is not started."""
        ...

    def Event(self) -> _Event:  # noqa: N802 - as above
        """Make an event that is not set."""
        ...


class Process:
    """The state that an operating system process has once. Give a `name` if the interpreter has several."""

    def __init__(self, name: str | None = None, *, threads: Threading = threading) -> None:
        self._name = name
        self.threads = threads
        self.worker: Any = None
        """The worker's runtime while its pool runs. Set by `toolfleet_tasks.worker_runtime`, which knows its type."""
        self.timers = WeakKeyDictionary[Any, Any]()
        """The shared timers of each event loop. Set by `toolfleet_registry.time.shared_timers`."""
        self._parts = dict[Callable[[], Any], Any]()

    @property
    def name(self) -> str:
        """The process's name in the fleet: `host:pid`, a fork has its own."""
        return self._name or f"{socket.gethostname()}:{os.getpid()}"

    def part(self, make: Callable[[], T]) -> T:
        """Return what `make` makes for this process: with the first call, and the same ever after. Any thread may ask."""
        made: T | None = self._parts.get(make)
        return self._parts.setdefault(make, make()) if made is None else made

    def thread(self, target: Callable[[], object], *, name: str) -> _Thread:
        """Make a daemon thread that runs `target` in this process."""

        def run() -> None:
            enter(self)
            target()

        return self.threads.Thread(target=run, name=name, daemon=True)


_only = Process()
_here = ContextVar("toolfleet_process", default=_only)  # so that threads without a context find it as well

this_process: Callable[[], Process] = _here.get
"""Return the one that the present context runs in. The variable's own method: it is asked several times a call."""


def enter(process: Process) -> Token[Process]:
    """Have the present context, and everything started from it, run in `process`."""
    return _here.set(process)
