"""The part of `ToolFleet` that follows the registry."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolfleet_registry.catalog.operator import fleets_registry
from toolfleet_registry.catalog.registry_events import RegistryEvents
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.port import ToolRegistry
from toolfleet_tasks.client.sessions import Sessions


class RegistryMethods:
    """Methods of `ToolFleet`, which has the sessions and the settings."""

    _sessions: Sessions
    _settings: Settings

    def registry_events(self, after: str | None = None) -> RegistryEvents:
        """What happens to the fleet's tools: `async for event in fleet.registry_events()`.

        Registered, changed, enabled, disabled, removed, rolled back, drifted and withheld, in order, each once, about a second
        later. `after` is the id of the last event that was heard of; '' for all of the last 10,000; `None` for those from now
        on. `RegistryEvents` says what it raises: `RegistryEventsLost` where some are gone, and `FleetUnavailable` when the
        registry has been away for 60 s; either may be followed on with. Raises `ValueError` if `after` is no id, and
        `RuntimeError` when the fleet is left.
        """
        return RegistryEvents(self._fleets_registry, after)

    @asynccontextmanager
    async def _fleets_registry(self) -> AsyncGenerator[ToolRegistry]:
        self._sessions.here()
        async with fleets_registry(self._settings) as registry:
            yield registry
