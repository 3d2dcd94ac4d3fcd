"""Describes what happens to tools and modules, as streams tell it, and decides who may hear of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.streams import ServerSentEvent
from toolfleet_registry.contracts.event_kinds import EVENT_KINDS
from toolfleet_registry.contracts.load_errors import ToolLoadError
from toolfleet_registry.manifests.specs import RegistryEvent
from toolfleet_registry.permissions import Modules, permits, reaches
from toolfleet_registry.policy.reach import modules_of


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event. `id` is the registry's, of what has happened there; `needs`: what a tool asks of its caller, if that is known.

    `is_for_viewers`: nobody else hears of it. Without a `module` everybody does.
    """

    kind: str
    data: Mapping[str, Any]
    id: str | None = None
    module: str | None = None
    needs: str | None = None
    is_for_viewers: bool = False

    def sent(self) -> ServerSentEvent:
        """As it is sent."""
        return ServerSentEvent(self.kind, json.dumps(self.data, separators=(",", ":")), self.id)


EVENTS_LOST = FeedEvent("events_lost", {})
"""Events are gone that were not heard of: look at all tools anew."""

KINDS = (
    "state",
    *(f"tool_{kind}" for kind in EVENT_KINDS),
    "tool_load_error",
    "module_up",
    "module_down",
    EVENTS_LOST.kind,
)
"""What clients may hear of; `state` is how the modules are when the stream begins."""


class Listener:
    """Who listens to a stream."""

    def __init__(self, who: Identity, guest_modules: frozenset[str]) -> None:
        self._is_viewer = who.has_role("viewer")
        self._permission = who.caller.permission
        self._modules: Modules = "*" if self._is_viewer else modules_of(who.caller, guest_modules)

    def may_hear(self, event: FeedEvent) -> bool:
        """Whether an event is theirs. What a tool asks for that nobody knows any more is for viewers."""
        if self._is_viewer or event.module is None:
            return True
        if event.is_for_viewers or not self.reaches(event.module):
            return False
        return event.needs is not None and permits(self._permission, event.needs)

    def reaches(self, module: str) -> bool:
        """Whether they may know of a module."""
        return reaches(module, self._modules)


def of_registry(event: RegistryEvent, needs: str | None) -> FeedEvent:
    """What has happened to a tool."""
    data = event.model_dump(mode="json", exclude_none=True, exclude={"id", "kind"})
    module = event.tool_name.partition(".")[0]
    is_for_viewers = event.kind == "drifted"
    return FeedEvent(f"tool_{event.kind}", data, event.id, module, needs, is_for_viewers)


def of_load_error(module: str, error: ToolLoadError) -> FeedEvent:
    """A file is not served as it stands."""
    data = {**error.model_dump(mode="json", exclude_none=True), "module": module}
    return FeedEvent("tool_load_error", data, module=module, is_for_viewers=True)


def of_module(module: str, *, is_up: bool) -> FeedEvent:
    """A module answers again, or does not any more."""
    return FeedEvent("module_up" if is_up else "module_down", {"module": module}, module=module, needs="guest")
