"""Gives the Celery app the task that runs a call in Celery's tracer, where its message needs anything of Celery.

What runs the call lives in the workers' room: a worker's start plugs it into the app.

A worker that receives the message of a call in a canvas publishes the next links, each time again: a worker may have died before
it had. A link's id is fixed with its signature, so the ledger runs it once, however often it is published.
"""

from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery, Task
from celery.states import SUCCESS

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.calls import MOST_RETRIES
from toolfleet_registry.errors import FleetError
from toolfleet_tasks.broker import make_queue
from toolfleet_tasks.greenlet_bridge import bridged, limits
from toolfleet_tasks.messages.envelope import FOLLOWERS, TASK, Links
from toolfleet_tasks.results.stored import word_of
from toolfleet_tasks.worker_runtime import RunningTask

END = "toolfleet_end"
"""In a task's request: how the call has ended already, which its body only repeats."""


class LinkFailed(FleetError):
    """A call of a chain or a chord has not succeeded, and what follows it is not called."""


class CallTask(Task):
    """Implements `RunningTask` under Celery's tracer.

    A worker of one lane can publish a link of another's.
    """

    throws = (LinkFailed,)
    # Characters of a result in which events look for how it ended, with RabbitMQ: a module's words stand before its code.
    resultrepr_maxsize = 2**16
    limits = staticmethod(limits)
    Strategy = "toolfleet_tasks.control.celery_worker:call_strategy"

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """As Celery's; a queue need not be among those that this process consumes."""
        name = options.get("queue")
        if isinstance(name, str):
            options["queue"] = make_queue(name)
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


# Celery's own shows arguments and results to everybody who asks.
_REQUEST = "toolfleet_tasks.control.celery_worker:FleetRequest"


def body(task: RunningTask, message: str) -> str:
    """The body of Celery's task: it runs the call, or ends as the call has ended already."""
    end: Callable[[], str] | None = getattr(task.request, END, None)
    return end() if callable(end) else _bridged(task, message)  # a message's header of this name is only text


async def _run(task: RunningTask, message: str) -> str:
    text: str = await task.app.run_call(task, message)
    return text


_bridged = bridged(_run, is_limited=False)


def register(app: Celery) -> None:
    """Give the app the task: acked when its result is stored, tried as often as the ledger lets it, limits from the message."""
    # One function for all apps: Celery warns of two with the same name.
    app.task(name=TASK, base=CallTask, bind=True, acks_late=True, max_retries=MOST_RETRIES, Request=_REQUEST)(body)
