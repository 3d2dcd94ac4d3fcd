"""A member of the fleet that would be a process of its own. It can be killed, as SIGKILL does it."""

import asyncio
import contextvars
import heapq
import os
import signal
import socket
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from bed import settling
from bed.greenlets import GreenEvent, GreenThread
from toolfleet_registry.system.process import Process, enter

T = TypeVar("T")

_site: contextvars.ContextVar["Site | None"] = contextvars.ContextVar("site", default=None)
_graveyard: list[object] = []  # what is collected would run its `finally`


class Killed(asyncio.CancelledError):
    """The code that has just written belongs to a dead site."""


class Site(Process):
    """An agent, a worker, beat, a gateway or a module: its tasks, callbacks and sockets, and what a process has once.

    Attributes:
        writes: How often it has written to a socket. All that the rest of the fleet can know of it came from these.
        dies_at: The write, counted from 1, at which it dies.
        written_then: How much of that write still leaves it, from 0 (it dies before it) to 1 (after it).
        on_death: Called at such a death, in the middle of the site's own code.
        pauses_at: The write, counted as above, after which it pauses; `on_pause` is called then.
        celery: What Celery keeps once a process, by name.
        carries: Whether it only passes on what others write.

    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}:1", thread=GreenThread, event=GreenEvent)
        self.host = name
        self.is_dead = self.carries = False
        self.tasks = weakref.WeakSet[asyncio.Task[Any]]()
        self.sockets = weakref.WeakSet[socket.socket]()
        self.writes = 0
        self.dies_at: int | None = None
        self.written_then = 0.0
        self.on_death: Callable[[], object] = lambda: None
        self.pauses_at: int | None = None
        self.on_pause: Callable[[], object] = lambda: None
        self.celery: dict[str, Any] = {}
        self._handlers: dict[int, Any] = {}
        self._held: _Held | None = None

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine as this site: whatever it starts belongs to the site as well."""
        context = contextvars.copy_context()
        context.run(_site.set, self)
        context.run(enter, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def kill(self) -> None:
        """End it as SIGKILL does: it writes nothing more, no `finally` runs, and its peers see the connections end."""
        loop: Any = asyncio.get_running_loop()
        self.is_dead = True
        _graveyard.append((_Held.taken(loop, self), list(self.tasks)))
        for task in self.tasks:
            asyncio.tasks._unregister_task(task)
        for each in sorted(self.sockets, key=socket.socket.fileno):
            if (descriptor := each.fileno()) >= 0:
                settling.before_write(each)
                each.detach()
                loop._transports.pop(descriptor, None)
                os.close(descriptor)

    def die_at(self, write: int, part: float = 1.0) -> asyncio.Event:
        """Have it die at a write, counted from now, of which `part` leaves it. Returns an event that is set then."""
        loop, dead = asyncio.get_running_loop(), asyncio.Event()

        def die() -> None:
            self.kill()
            dead.set()

        context = contextvars.copy_context()
        self.on_death = lambda: loop.call_soon(die, context=context)
        self.dies_at, self.written_then = self.writes + write, part
        return dead

    def pause_at(self, write: int) -> asyncio.Event:
        """Have it pause after a write, counted from now. Returns an event that is set then."""
        loop, paused = asyncio.get_running_loop(), asyncio.Event()

        def pause() -> None:
            self.pause()
            paused.set()

        context = contextvars.copy_context()
        self.on_pause = lambda: loop.call_soon(pause, context=context)
        self.pauses_at = self.writes + write
        return paused

    def pause(self) -> None:
        """Stop it as SIGSTOP does: none of its code runs, and its connections stay. One that is stopped stays so."""
        if self._held is None:
            self._held = _Held.taken(asyncio.get_running_loop(), self)

    def resume(self) -> None:
        """Let it go on, as SIGCONT does. What fell due meanwhile is late."""
        held, self._held = self._held, None
        if held is not None:
            held.give_back(asyncio.get_running_loop())

    def handle(self, number: int, handler: Any) -> Any:
        """Implements `signal.signal`."""
        before = self._handlers.get(number, signal.SIG_DFL)
        self._handlers[number] = handler
        return before

    def send_signal(self, number: int) -> None:
        """Call its handler of a signal, as the kernel does."""
        handler = self._handlers.get(number, signal.SIG_DFL)
        if not callable(handler):
            raise LookupError(f"{self.host} handles no signal {number}")
        self.start(_called(handler, number))

    def written(self, data: Any) -> Any:
        """Return what of a write leaves the site; `None` if it is dead."""
        if self.is_dead:
            return None
        self.writes += 1
        if self.writes == self.pauses_at:
            self.on_pause()
        if self.writes != self.dies_at:
            return data
        self.is_dead = True
        self.on_death()
        return bytes(memoryview(data)[: int(len(data) * self.written_then)]) or None


async def _called(handler: Callable[[int, None], object], number: int) -> None:
    handler(number, None)


def here() -> Site | None:
    """Return the site whose code runs now; `None` for the test's own."""
    return _site.get()


def site_of(context: contextvars.Context | None) -> Site | None:
    """Return the site of a context, or of the present one."""
    return _site.get() if context is None else context.get(_site)


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address in memory."""

    _numbers = count()

    def __init__(self, *args: Any, **options: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


class OwnedFuture(asyncio.Future[Any]):
    """A future of which the same holds."""

    _numbers = count()

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = next(self._numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


def owned_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
    """Make a task of the site in whose context it is made. A task factory."""
    task = _Task(work, loop=loop, **options)
    if (site := site_of(options.get("context"))) is not None:
        site.tasks.add(task)
    return task


@dataclass
class _Held:
    """What a loop is to run of a site: callbacks that are ready, timers, and files with their callbacks."""

    ready: list[Any]
    timers: list[Any]
    files: list[Any]

    @classmethod
    def taken(cls, loop: Any, site: Site) -> "_Held":
        """Take it from the loop. asyncio has no door to any of it."""
        held = cls([], [], [])
        for place, handle in enumerate(loop._ready):
            if site_of(handle._context) is site:
                held.ready.append(handle)
                loop._ready[place] = idle = asyncio.Handle(lambda: None, (), loop)
                idle.cancel()
        held.timers = [timer for timer in loop._scheduled if site_of(timer._context) is site]
        for timer in held.timers:
            timer._scheduled = False
        loop._scheduled[:] = [timer for timer in loop._scheduled if timer._scheduled]
        heapq.heapify(loop._scheduled)
        for key in tuple(loop._selector.get_map().values()):
            if any(handle is not None and site_of(handle._context) is site for handle in key.data or ()):
                held.files.append(key)
                loop._selector.unregister(key.fileobj)
        return held

    def give_back(self, loop: Any) -> None:
        """Have the loop run it again."""
        loop._ready.extend(self.ready)
        for timer in self.timers:
            timer._scheduled = True
            heapq.heappush(loop._scheduled, timer)
        for key in self.files:
            loop._selector.register(key.fileobj, key.events, key.data)
