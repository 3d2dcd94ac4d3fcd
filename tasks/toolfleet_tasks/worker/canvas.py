"""Publishes the next links of Celery's canvas in a worker: what follows a call, and that it follows once.

The worker that receives such a call's message publishes the next links, each time again: a worker may have died before
it had. That does no harm. A link's id is fixed with its signature, so that the ledger runs it once, however often it is
published.

Only Celery's task knows of this; a call that runs without its tracer has no place in a canvas.
"""

from collections.abc import Mapping
from typing import Any

from celery import Task
from celery.states import SUCCESS
from kombu.entity import Exchange, Queue

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import FleetError
from toolfleet_tasks.greenlet_bridge import limits
from toolfleet_tasks.messages.envelope import FOLLOWERS, Links
from toolfleet_tasks.results.stored import word_of


class LinkFailed(FleetError):
    """A call of a chain or a chord has not succeeded, and what follows it is not called."""


class CallTask(Task):
    """Implements `running_task.RunningTask` under Celery's tracer.

    A worker of one lane can publish a link of another's.
    """

    throws = (LinkFailed,)
    # Characters of a result in which events look for how it ended, with RabbitMQ: a module's words stand before its code.
    resultrepr_maxsize = 2**16
    limits = staticmethod(limits)
    Strategy = "toolfleet_tasks.control.call_strategy:call_strategy"

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """As Celery's; a queue need not be among those that this process consumes."""
        name = options.get("queue")
        if isinstance(name, str):
            options["queue"] = Queue(name, Exchange("toolfleet", type="direct"), routing_key=name)
        return super().apply_async(args, kwargs, *more, **options)

    @property
    def is_followed(self) -> bool:
        """Implements `RunningTask.is_followed`."""
        return is_followed(self.request)

    @property
    def links(self) -> Links | None:
        """Implements `RunningTask.links`."""
        return links_of(self.request)

    def pass_on(self, text: str, result: ToolResult) -> None:
        """Implements `RunningTask.pass_on` by Celery.

        Raises `LinkFailed` for a call that has not succeeded: then it tells the next links that.
        """
        if result.success:
            return
        if not self.app.settings.has_redis_broker:  # else its own result stands already
            self.backend.store_result(self.request.id, text, SUCCESS, request=self.request)
        raise LinkFailed(f"The call before it has not succeeded: {word_of(result)}.")


def is_followed(request: Any) -> bool:
    """Return whether anything but its result's reader waits for this request's call."""
    return any(getattr(request, name, None) for name in FOLLOWERS)


def links_of(request: Any) -> Links | None:
    """Return the canvas fields of the next message of this request's call; `None` for a call by itself."""
    group = getattr(request, "group", None)
    if group is None and not is_followed(request):
        return None
    after: Mapping[str, Any] = {name: getattr(request, name, None) for name in FOLLOWERS}
    index = getattr(request, "group_index", None)
    return Links(after, group, index, request.root_id or request.id, getattr(request, "parent_id", None))
