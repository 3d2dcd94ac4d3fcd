"""Decides which queues a running worker consumes, as the directory of modules and operators say, and where their modules are.

Running calls continue.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextvars import Context
from typing import Any

from toolfleet_registry.directory.entries import AnnouncedModule, ModuleEntry
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.directory.watch import ModuleWatch
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.control.fleet_tasks import probe_for_agents
from toolfleet_tasks.presence import ReplicaCounts
from toolfleet_workers.executors.http_executor import HttpExecutor
from toolfleet_workers.runner import ToolLookup

log = get_logger(__name__)

IsPaused = Callable[[str], bool]
"""Whether an operator has paused the queue of this name."""

_END_SECONDS = 5.0  # for looks that were cancelled


class Consumption:
    """The consumption of the worker's module queues; an operator who adds other queues must also remove them."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._is_stopped = False
        self._added = dict[str, Any]()
        self._paused = frozenset[str]()
        self._is_paused: IsPaused = _is_never_paused

    @property
    def is_stopped(self) -> bool:
        """Whether it takes no calls. Thread-safe."""
        return self._is_stopped

    @property
    def paused(self) -> frozenset[str]:
        """The queues that it would consume if they were not paused. For any thread to read."""
        return frozenset() if self._is_stopped else self._paused

    def stop_if(self, is_too_far: bool) -> None:  # noqa: FBT001 - it is what a watch is told
        """Take no calls while this machine's clock is too far off. May be called from any loop or thread, again and again."""
        consumer = self._worker.consumer
        if (is_too_far or self._is_stopped) and consumer is not None:
            consumer.call_soon(self._change, consumer, is_too_far)

    def add(self, queues: Iterable[Any]) -> None:
        """Consume these queues of kombu in addition to those of the worker's start, and no others that were added before.

        May be called from any loop or thread, repeatedly: an unchanged state costs nothing.
        """
        wanted, consumer = {queue.name: queue for queue in queues}, self._worker.consumer
        if consumer is not None and wanted.keys() != self._added.keys():
            consumer.call_soon(self._follow, consumer, wanted)

    def begin_paused(self, is_paused: IsPaused) -> None:
        """Leave these out from the start. For the worker's own thread, before it consumes anything."""
        queues, self._is_paused = self._worker.app.amqp.queues, is_paused
        self._paused = frozenset(filter(is_paused, queues.consume_from))
        queues.deselect(sorted(self._paused))

    def pause(self, is_paused: IsPaused) -> None:
        """Pause those queues, and no others.

        May be called from any loop or thread, repeatedly: an unchanged state costs nothing.
        """
        consumer = self._worker.consumer
        if consumer is None:
            return
        if frozenset(filter(is_paused, self._names(consumer))) == self._paused:
            self._is_paused = is_paused
        else:
            consumer.call_soon(self._pause, consumer, is_paused)

    def _change(self, consumer: Any, is_stopped: bool) -> None:  # noqa: FBT001 - as above
        if not _is_connected(consumer):
            return  # between two connections, or at the worker's end: if there is a next look, it comes soon
        for name in self._names(consumer):
            if is_stopped and consumer.task_consumer.consuming_from(name):
                consumer.cancel_task_queue(name)
            elif not is_stopped and name not in self._paused:
                consumer.add_task_queue(name)
        if is_stopped != self._is_stopped:
            self._is_stopped = is_stopped
            if is_stopped:
                log.error("worker_takes_no_calls", hint="set this machine's clock")
            else:
                log.warning("worker_takes_calls_again")

    def _pause(self, consumer: Any, is_paused: IsPaused) -> None:
        if not _is_connected(consumer):
            return
        names, self._is_paused = self._names(consumer), is_paused
        for name in filter(is_paused, names):
            # One that it does not consume now is not started with the resuming: an operator has ended that.
            if name not in self._paused and (self._is_stopped or consumer.task_consumer.consuming_from(name)):
                self._paused |= {name}
                consumer.cancel_task_queue(name)
                log.info("queue_paused", queue=name)
        for name in sorted(self._paused):
            if not is_paused(name):
                self._paused -= {name}
                if not self._is_stopped and name in names:
                    consumer.add_task_queue(name)
                log.info("queue_resumed", queue=name)

    def _follow(self, consumer: Any, wanted: dict[str, Any]) -> None:
        if not _is_connected(consumer):
            return
        own = {queue.name for queue in consumer.app.conf.task_queues}
        for name, queue in wanted.items():
            if name not in self._added and name not in own:
                consumer.app.amqp.queues.add(queue)
                if self._is_paused(name):
                    self._paused |= {name}
                elif not self._is_stopped:
                    consumer.add_task_queue(name)
        for name in self._added.keys() - wanted.keys() - own:
            if consumer.task_consumer.consuming_from(name):
                consumer.cancel_task_queue(name)
            self._paused -= {name}
        self._added = wanted

    def _names(self, consumer: Any) -> list[str]:
        return [*(queue.name for queue in consumer.app.conf.task_queues), *tuple(self._added)]


class ConsumedNames:
    """The names of the queues that a worker consumes, also paused ones; between two connections to its broker, the last ones.

    A paused worker still serves its queues: otherwise agents would refuse their calls, and operators would look for a
    worker.
    """

    def __init__(self, worker: Any, consumption: Consumption | None = None) -> None:
        self._worker = worker
        self._consumption = consumption
        self._names = tuple[str, ...]()

    def __call__(self) -> tuple[str, ...]:
        """Return their present names. Thread-safe."""
        task_consumer = getattr(getattr(self._worker, "consumer", None), "task_consumer", None)
        if task_consumer is not None:
            paused = frozenset[str]() if self._consumption is None else self._consumption.paused
            self._names = tuple(dict.fromkeys((*(queue.name for queue in task_consumer.queues), *sorted(paused))))
        return self._names


def _is_connected(consumer: Any) -> bool:
    return consumer.task_consumer is not None and consumer.task_consumer.channel.connection is not None


def _is_never_paused(_: str) -> bool:
    return False


class ServedModules:
    """The served modules of a worker, on the loop of its pool.

    `consume` is called with the queues to consume in addition to its settings'.

    `own` are modules that this worker is itself: their manifests are published at its start, for the code may have
    changed.
    """

    def __init__(
        self,
        settings: Settings,
        known: KnownModules,
        http: HttpExecutor,
        tools: ToolLookup,
        *,
        own: Collection[str] = (),
    ) -> None:
        self._own = own
        self.consume: Callable[[Iterable[str]], None] = _nowhere
        self._known = known
        self._http = http
        self._tools = tools
        self._watch = ModuleWatch(settings, known, on_poll=self._follow, on_asked=self._probe)
        http.reread = self._watch.reread
        self._counts = ReplicaCounts(settings, http.counts)
        self._settings, self._lane = settings, settings.lane
        self._probing: set[asyncio.Task[None]] = set()
        self._seen = dict[str, object]()

    async def prepare(self) -> None:
        """Return when the directory has been read once, or Redis does not answer."""
        await self._watch.prepare()

    async def keep(self) -> None:
        """Follow the directory until cancelled."""
        if self._own:
            self._aside(self._tools.reload_modules(self._own))
        await asyncio.gather(self._watch.keep(), self._counts.keep())

    async def leave(self) -> None:
        """Say that this worker's settings count no more. Raises nothing."""
        await self._watch.leave()

    async def aclose(self) -> None:
        """Cancel the running work, and close the connection."""
        probing = [*self._probing]
        for task in probing:
            task.cancel()
        if probing:
            await asyncio.wait(probing, timeout=_END_SECONDS)
        await self._watch.aclose()

    async def _follow(self) -> None:
        known = self._known
        added = known.added
        services, replicas = known.settings.module_services, known.replicas
        self._http.serve(services, headers=known.headers, ended=known.ending, replicas=replicas)
        self._http.guard(known.guards)
        self.consume(name for name in (*added, *known.ending) if self._lane in {"all", known.entries[name].lane})
        seen = {name: _identity(known.entries[name]) for name in added}
        new = [name for name, what in seen.items() if self._seen.get(name) != what]
        self._seen = seen
        if new:
            await self._tools.ensure_modules(new, is_new=True)
        if added:  # one that was not there yet is asked again, after pauses that grow
            await self._tools.ensure_modules(added, is_new=False)

    async def _probe(self, number: int) -> None:
        """Ask all modules on behalf of agents, aside: a module may take its time."""
        self._aside(probe_for_agents(self._settings, number))

    def _aside(self, read: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(read, name="toolfleet-look", context=Context())
        self._probing.add(task)
        task.add_done_callback(self._on_probed)

    def _on_probed(self, task: "asyncio.Task[None]") -> None:
        self._probing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("look_for_agents_failed", error=str(error))


def _identity(entry: ModuleEntry) -> object:
    """Return a module's identity; it changes when another module, with other tools, has its name."""
    return entry.digest if isinstance(entry, AnnouncedModule) else (entry.url, entry.added_at)


def _nowhere(_: Iterable[str]) -> None:
    """Do nothing, until the worker consumes."""
