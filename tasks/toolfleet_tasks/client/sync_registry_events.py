"""The part of the synchronous fleet that follows the registry."""

from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from toolfleet_registry.catalog.registry_events import RegistryEvents
from toolfleet_registry.manifests.specs import RegistryEvent

if TYPE_CHECKING:
    from toolfleet_tasks.client.fleet import ToolFleet

T = TypeVar("T")


class SyncRegistryMethods:
    """Methods of `SyncToolFleet`, which has the fleet and its loop."""

    _fleet: "ToolFleet"

    def registry_events(self, after: str | None = None) -> Generator[RegistryEvent]:
        """As `ToolFleet.registry_events`: `for event in fleet.registry_events()`. After an error it has ended: follow on by `after`."""
        return self._each(self._fleet.registry_events(after))

    def _each(self, events: RegistryEvents) -> Generator[RegistryEvent]:
        while True:
            yield self._wait(_next(events))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError


async def _next(events: RegistryEvents) -> RegistryEvent:
    return await anext(events)
