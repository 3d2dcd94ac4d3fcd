"""Gives the Celery app the task that runs a call: in Celery's tracer, or without it where nothing needs that.

The tracer is needed only if a call's end is anything but a stored result: a retry, say. Then it runs after all, with a
task body that ends as the call has. It runs from the start for links of a canvas, with listeners of Celery's signals
around tasks, for messages that are not in our own form, and with RabbitMQ. Without it `current_task` is not set. What runs the
call lives in the workers' room: a worker's start plugs it into the app.

A worker that receives the message of a call in a canvas publishes the next links, each time again: a worker may have died before
it had. A link's id is fixed with its signature, so the ledger runs it once, however often it is published.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from celery import Celery, Task, signals
from celery.app.trace import fast_trace_task
from celery.states import SUCCESS

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.calls import MOST_RETRIES
from toolfleet_registry.errors import FleetError
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.broker import make_queue
from toolfleet_tasks.greenlet_bridge import Bridge, bridged, limits
from toolfleet_tasks.messages.envelope import FOLLOWERS, TASK, Links, stands_alone
from toolfleet_tasks.results.stored import word_of
from toolfleet_tasks.worker_runtime import Limits, RunningTask

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


_OF_TRACER = 6  # task, id, request, body, content type and encoding
_PRERUN, _POSTRUN, _SUCCESS = signals.task_prerun, signals.task_postrun, signals.task_success

# Celery's own shows arguments and results to everybody who asks.
_REQUEST = "toolfleet_tasks.control.celery_worker:FleetRequest"


class CallRequest:
    """A call's message, under the names of Celery's `Context`; `None` for missing fields."""

    __slots__ = ("_said", "hostname", "id", "is_parked", "is_stored")

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._said = said
        self.id, self.hostname = said.get("id"), said.get("hostname")  # asked of each call
        self.is_stored = self.is_parked = False

    def get(self, name: str) -> Any:
        """Return the message's value of this name."""
        return self._said.get(name)

    __getattr__ = get


class FastPathTask:
    """Implements `RunningTask` for a call that runs so, in place of Celery's task."""

    __slots__ = ("_said", "app", "limits", "request")
    is_followed = False
    links = None

    def __init__(self, app: Any, said: dict[str, Any], limits: Limits) -> None:
        self.app = app
        self.request = CallRequest(said)
        self.limits = limits
        """Implements `RunningTask.limits`."""
        self._said = said

    def pass_on(self, text: str, result: ToolResult) -> None:
        """Implements `RunningTask.pass_on`: nothing follows it."""

    def run(self) -> Coroutine[Any, Any, str]:
        """The call, from here to its end; raises what its task would."""
        call: Coroutine[Any, Any, str] = self.app.run_call(self, self._said["args"][0])
        return call

    def ends_as(self, end: Callable[[], str]) -> None:
        """Have a task body that Celery's tracer runs now do this instead."""
        self._said[END] = end


def untraced(app: Any, target: Callable[..., Any], args: tuple[Any, ...], bridge: Bridge[Any]) -> FastPathTask | None:
    """The task of a call that the tracer need not run, by what Celery wants run; `None` if it must."""
    if target is not fast_trace_task or len(args) != _OF_TRACER or args[0] != TASK:
        return None
    _, _, said, body, *_ = args
    if worker_runtime.current() is None or not app.has_redis_broker or _has_listeners():
        return None
    if not stands_alone(said, body) or not _is_as_ours(said):
        return None
    return FastPathTask(app, said, bridge.limits)


def _has_listeners() -> bool:
    return bool(_PRERUN.receivers or _POSTRUN.receivers or _SUCCESS.receivers)


def _is_as_ours(said: Mapping[str, Any]) -> bool:
    """Return whether headers and arguments are those of our own messages. The tracer ends all other messages.

    It takes links from a body only, and has defaults of its own for missing headers.
    """
    args = said["args"]
    return isinstance(args, list) and len(args) == 1 and said.get("retries") is not None


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
