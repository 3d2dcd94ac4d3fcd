"""Calls the links of Celery's canvas in a worker: what follows a call, and that it follows once.

Whoever is delivered such a call's message sees to what follows it, each time anew: a worker may have died before it had.
That does no harm. A link's id is fixed with its signature, so that the ledger runs it once, however often it is published.
"""

from collections.abc import Mapping
from typing import Any

from celery import Task
from kombu.entity import Exchange, Queue

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import FleetError
from toolfleet_tasks.aio.greenlet_bridge import limits
from toolfleet_tasks.messages.envelope import Links
from toolfleet_tasks.results.stored import word_of

_AFTER = ("callbacks", "errbacks", "chain", "chord")
LINKS = frozenset(_AFTER)
"""What a message's body says of what follows its call, by Celery's names."""


class LinkFailed(FleetError):
    """A call of a chain or a chord has not succeeded, and what follows it is not called."""


class CallTask(Task):  # type: ignore[misc] # Celery ships no types
    """The base of the task that runs a call: a worker of one lane can publish a link of another's."""

    throws = (LinkFailed,)
    # Characters of a result in which events look for how it ended, with stock parts: a module's words stand before its code.
    resultrepr_maxsize = 2**16
    limits = staticmethod(limits)

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """As Celery's; a queue need not be among those that this process consumes."""
        name = options.get("queue")
        if isinstance(name, str):
            options["queue"] = Queue(name, Exchange("toolfleet", type="direct"), routing_key=name)
        return super().apply_async(args, kwargs, *more, **options)


def is_followed(request: Any) -> bool:
    """Whether anything waits for this call's end but its result."""
    return any(getattr(request, name, None) for name in _AFTER)


def links_of(request: Any) -> Links | None:
    """What the next message of this call must say of its place in the canvas; `None` for a call by itself."""
    group = getattr(request, "group", None)
    if group is None and not is_followed(request):
        return None
    after: Mapping[str, Any] = {name: getattr(request, name, None) for name in _AFTER}
    index = getattr(request, "group_index", None)
    return Links(after, group, index, request.root_id or request.id, getattr(request, "parent_id", None))


def go_on(request: Any, result: ToolResult) -> None:
    """Let what follows this call begin. Raises `LinkFailed` if it has not succeeded: then Celery tells those instead."""
    if not result.success and is_followed(request):
        raise LinkFailed(f"The call before it has not succeeded: {word_of(result)}.")
