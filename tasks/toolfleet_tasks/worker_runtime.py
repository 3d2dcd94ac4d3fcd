"""Holds what a worker process has once: its connections to each Redis, its slots, and the parts that live as long as it does.

The pool starts the runtime with its loop and stops it when all calls have ended. Celery and kombu make the transport,
the backend and the events, and pass no arguments on to them: these find the process's runtime here, or none outside of
a worker. What runs a call for its `RunningTask`, and the `Runner` of its attempts, the worker's start plugs into the app.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.attempts import Health
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.system import randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.fairness import UNBOUNDED, FairSlots, PausedQueues
from toolfleet_tasks.messages.envelope import Links
from toolfleet_tasks.redis_connection import PipelinedConnection, Push

P = ParamSpec("P")
T = TypeVar("T")

log = get_logger(__name__)

_NAME = 12  # hex digits: a tag that is a call's token, with what such a token says, stays below 64 bytes, which is cheap for Redis
_SETTLE_SECONDS = 5.0  # for what was written last to be answered, before the connections are closed


Limits = Callable[[float | None, float | None], AbstractContextManager[Callable[[BaseException], object]]]
"""Holds a block to a soft and a hard limit, in seconds; it yields what interrupts it."""


class WorkerRuntime:
    """A worker's connections to each Redis, and its parts, from `start` to `stop`. For the thread that made it.

    `name`: under which this process holds messages and claims, and no other one ever.
    `bounds`: how many calls may run at once in a module that has a bound, if the broker's Redis knows what runs there.
    `listeners` get every push frame of every connection. `leaving`: who is to hear that the worker was told to end. `settle`: what must be over before the connections may close, each within a
    few seconds. `slots`: who has which; they outlive channels and connections. `capacity` says how many
    there should be. `resting`: the queues that are left to others for now. `is_paused`: whether an operator has paused
    a queue, as this worker has heard. `take` has a fetched message's call run without Celery, if it can. `intake`: what
    takes messages for the present connection, and is told what becomes of them.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, broker: str, master: str | None, bounds: Mapping[str, int] | None = None
    ) -> None:
        self.loop = loop
        self.name = randomness.uuid4().hex[:_NAME]
        self.bounds = bounds or {}
        self.slots = FairSlots()
        self.capacity: Callable[[], int] = lambda: UNBOUNDED
        self._broker, self._master = broker, master
        self.thread_id = threading.get_ident()
        self.listeners: list[Callable[[Push], None]] = []
        self.settle: list[Callable[[], Awaitable[object]]] = []
        self.leaving: list[Callable[[], object]] = []
        self.resting = PausedQueues()
        self.is_paused: Callable[[str], bool] = _is_never_paused
        self.take: Callable[[dict[str, Any]], bool] = take_none
        self.intake: Any = None
        self.execution: Any = None
        """The parts that all calls of this worker share, once one has run. Set by `toolfleet_workers.execution`, which knows their type."""
        self._connections: dict[tuple[str, str], PipelinedConnection] = {}
        self._parts: dict[Hashable, Any] = {}
        self._later: set[asyncio.Future[object]] = set()
        self.settle.append(self._later_ended)

    def to(self, url: str, *, master: str | None, purpose: str = "commands") -> PipelinedConnection:
        """Return the connection to this Redis for this purpose. One that blocks needs a purpose of its own."""
        connection = self._connections.get((url, purpose))
        if connection is None:
            connection = PipelinedConnection(connection_factory(url, master=master), name=purpose, loop=self.loop)
            connection.on_push = self._on_push
            connection.start()
            self._connections[url, purpose] = connection
        return connection

    def to_broker(self, purpose: str = "commands") -> PipelinedConnection:
        """Return the connection to the broker's Redis for this purpose.

        One that subscribes is for nothing else: Redis gives up a subscriber that has 32 MB to read.
        """
        return self.to(self._broker, master=self._master, purpose=purpose)

    def part(self, make: Callable[Concatenate["WorkerRuntime", P], T], *args: P.args, **options: P.kwargs) -> T:
        """Return what `make` makes for this worker: it is made with the first call, and the same from then on.

        What it must end before the connections close it appends to `settle`.
        """
        if make not in self._parts:
            self._parts[make] = make(self, *args, **options)
        made: T = self._parts[make]
        return made

    def made(self, make: Callable[..., T]) -> T | None:
        """Return the object that `make` has made for this worker, if it has. Thread-safe."""
        found: T | None = self._parts.get(make)
        return found

    def later(self, work: Awaitable[object]) -> None:
        """Run something in the background. The connections stay open for it, within the same time."""
        task = asyncio.ensure_future(work, loop=self.loop)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def aclose(self) -> None:
        """Let started work end, within a bounded time, and close every connection."""
        await asyncio.gather(*(_settled(settle) for settle in self.settle))
        for connection in self._connections.values():
            await connection.aclose()

    async def _later_ended(self) -> None:
        if self._later:
            await asyncio.wait(self._later)

    def _on_push(self, frame: Push) -> None:
        for listener in self.listeners:
            listener(frame)


def _is_never_paused(_: str) -> bool:
    return False


def take_none(_: object) -> bool:
    """Leave a fetched message to Celery."""
    return False


async def _settled(settle: Callable[[], Awaitable[object]]) -> None:
    try:
        async with asyncio.timeout(_SETTLE_SECONDS):
            await settle()
    except Exception as exc:  # noqa: BLE001 - what else there is has to be closed as well
        log.warning("line_not_settled", error=str(exc) or repr(exc))


dropped: list[Callable[[Any], None]] = []
"""Is called with each of Celery's requests whose call was cancelled: it is dropped, interrupted, or will be dropped."""


def current() -> WorkerRuntime | None:
    """Return the runtime of this process, if it is a worker with a running pool."""
    runtime: WorkerRuntime | None = this_process().worker
    return runtime


def here() -> WorkerRuntime:
    """Return the runtime of this worker. Raises `RuntimeError` where no worker's pool is running."""
    runtime: WorkerRuntime | None = this_process().worker
    if runtime is None:
        raise RuntimeError("A call runs in a worker only, whose pool has an event loop.")
    return runtime


def start(
    loop: asyncio.AbstractEventLoop,
    *,
    broker: str = "",
    master: str | None = None,
    bounds: Mapping[str, int] | None = None,
) -> WorkerRuntime:
    """Start the runtime. Called by the pool, with its loop, before anything is consumed.

    `broker` is the URL of the Redis that carries the queues. It is passed here and not through Celery's settings, which
    `inspect` shows to everybody, with the password.
    """
    runtime = this_process().worker = WorkerRuntime(loop, broker, master, bounds)
    return runtime


async def stop() -> None:
    """Stop the runtime. Called by the pool when its calls have ended, on its loop."""
    process = this_process()
    runtime, process.worker = current(), None
    if runtime is not None:
        await runtime.aclose()


class RunningTask(Protocol):
    """A call's task in a worker. `app` is the `FleetApp`; `request` says what its message says, as Celery's `Context` does."""

    app: Any
    request: Any

    @property
    def is_followed(self) -> bool:
        """Whether anything but its result's reader waits for this call's end: it is a link of a canvas."""
        ...

    @property
    def links(self) -> Links | None:
        """The canvas fields of the next message of this call; `None` for a call by itself."""
        ...

    @property
    def limits(self) -> Limits:
        """The call's time limits."""
        ...

    def pass_on(self, text: str, result: ToolResult) -> None:
        """Start what follows the call, once it has ended with `result`, of which `text` is the stored form."""
        ...


RunCall = Callable[[RunningTask, str], Coroutine[Any, Any, str]]
"""Runs a call's message for its task, from the claim to its end. Returns and raises what Celery's tracer understands."""


class Runner(Protocol):
    """Runs the attempts of calls. Lives in the worker process; tasks ask it for modules only."""

    async def probe(self, module: str, *, seconds: float) -> Health:
        """Check whether the module is there, over a connection of its own and without a call; within `seconds`.

        Raises `CancelledError` only.
        """
        ...
