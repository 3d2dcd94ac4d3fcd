"""Shows and refreshes what modules offer, and follows the registry: `fleet.modules`."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

from toolfleet_registry.agents.explanation import ToolExplanation
from toolfleet_registry.catalog.registry_events import RegistryEvents
from toolfleet_registry.contracts import Caller, Conversation, ModuleStatus
from toolfleet_registry.specs import RegistryEvent
from toolfleet_registry.store.registry import ToolRegistry
from toolfleet_tasks.client.session import Sessions
from toolfleet_tasks.client.sync_face import SyncFace, blocking


class FleetModules:
    """The modules of a fleet, and the tools that they register."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def statuses(self) -> dict[str, ModuleStatus]:
        """Return the known status of every module, by its name, without asking any."""
        return await (await self._sessions.opened()).statuses()

    async def refresh(self) -> dict[str, ModuleStatus]:
        """Ask every module now for what it offers."""
        return await (await self._sessions.opened()).refresh()

    async def explain(
        self, tool_name: str, caller: Caller, *, conversation: Conversation | None = None
    ) -> ToolExplanation:
        """Say why the caller may call a tool, or may not: each rule that has a say, in order, and where it stands. Counts nothing.

        `conversation`: of which run and conversation the call would be: how much these have used of their profile's limits.
        """
        return await (await self._sessions.opened()).explain(tool_name, caller, conversation)

    def events(self, after: str | None = None) -> RegistryEvents:
        """Follow what happens to the fleet's tools: `async for event in fleet.modules.events()`.

        Registered, changed, enabled, disabled, removed, rolled back, drifted and withheld, in order, each once, about a second
        later. `after` is the id of the last event that was heard of; '' for all of the last 10,000; `None` for those from now
        on. `RegistryEvents` says what it raises: `RegistryEventsLost` where some are gone, and `FleetUnavailable` when the
        registry has been away for 60 s; either may be followed on with. Raises `ValueError` if `after` is no id, and
        `RuntimeError` when the fleet is left.
        """
        return RegistryEvents(self._registry, after)

    @asynccontextmanager
    async def _registry(self) -> AsyncGenerator[ToolRegistry]:
        session = await self._sessions.opened()
        async with session.held.registry() as registry:
            yield registry


class SyncFleetModules(SyncFace[FleetModules]):
    """`FleetModules` with plain methods."""

    statuses = blocking(FleetModules.statuses)
    refresh = blocking(FleetModules.refresh)
    explain = blocking(FleetModules.explain)

    def events(self, after: str | None = None) -> Generator[RegistryEvent]:
        """Yield events as `FleetModules.events` does: `for event in fleet.modules.events()`.

        After an error it has ended: continue by `after`.
        """
        return self._each(self._face.events(after))
