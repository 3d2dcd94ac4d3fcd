"""Words changes as the protocol's notifications."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import mcp_types as types
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
    event_to_notification,
)

from toolfleet_gateway.mcp.changes.change_queue import ViewChange, ViewChangeKind

_LISTS: Final[Mapping[ViewChangeKind, ServerEvent]] = {
    "tools": ToolsListChanged(),
    "prompts": PromptsListChanged(),
    "resources": ResourcesListChanged(),
}
LISTS: Final = frozenset(_LISTS)
"""What may change as a list."""


def wanted_of(change: ViewChange, lists: Collection[ViewChangeKind], uris: Collection[str]) -> list[ViewChange]:
    """Return the parts of a change for a client that listens for these lists, and watches these resources."""
    if change.kind == "lost":
        return [*(ViewChange(kind) for kind in _LISTS if kind in lists), *(ViewChange("resource", uri) for uri in uris)]
    if change.kind == "resource":
        return [change] if change.subject in uris else []
    return [change] if change.kind in lists else []


def notification_of(change: ViewChange, meta: Mapping[str, Any]) -> types.ServerNotification:
    """Return the notification of a list's, or of a resource's change."""
    event = _LISTS.get(change.kind) or ResourceUpdated(change.subject)
    return event_to_notification(event, dict(meta))


def task_notification(state: Mapping[str, Any], meta: Mapping[str, Any]) -> types.Notification[Any, str]:
    """Return the notification of a task's state, of the extension `io.modelcontextprotocol/tasks`."""
    return types.Notification[Any, str](method="notifications/tasks", params={**state, "_meta": dict(meta)})
