"""Has a running worker serve what the directory of modules says: its queues, its addresses, and what its modules offer."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextvars import Context
from typing import Any

from toolfleet_registry.directory.entries import AnnouncedModule, ModuleEntry
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.directory.watch import ModuleWatch
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.control.refresh import probe_for_agents
from toolfleet_tasks.presence.replica_counts import ReplicaCounts
from toolfleet_workers.executors.http.executor import HttpExecutor
from toolfleet_workers.runner import ToolLookup

_END_SECONDS = 5.0  # for looks that were cancelled

log = get_logger(__name__)


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
            await self._tools.ensure_modules(new, anew=True)
        if added:  # one that was not there yet is asked again, after pauses that grow
            await self._tools.ensure_modules(added, anew=False)

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
