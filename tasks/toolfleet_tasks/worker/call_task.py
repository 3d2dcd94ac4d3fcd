"""Gives the Celery app the task that runs a call: in Celery's tracer, or without it where nothing needs that.

The tracer is needed only if a call's end is anything but a stored result: a retry, say. Then it runs after all, with a
task body that ends as the call has. It runs from the start for links of a canvas, with listeners of Celery's signals
around tasks, for messages that are not in our own form, and with RabbitMQ. Without it `current_task` is not set.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from celery import Celery, signals
from celery.app.trace import fast_trace_task

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.calls import MOST_RETRIES
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.greenlet_bridge import Bridge
from toolfleet_tasks.messages.envelope import TASK, stands_alone
from toolfleet_tasks.worker import execute
from toolfleet_tasks.worker.accepted import follow_revocations
from toolfleet_tasks.worker.canvas import CallTask
from toolfleet_tasks.worker.execute import body
from toolfleet_tasks.worker.running_task import Limits

_OF_TRACER = 6  # task, id, request, body, content type and encoding
_PRERUN, _POSTRUN, _SUCCESS = signals.task_prerun, signals.task_postrun, signals.task_success

# Celery's own shows arguments and results to everybody who asks.
_REQUEST = "toolfleet_tasks.control.call_strategy:FleetRequest"


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
    """Implements `running_task.RunningTask` for a call that runs so, in place of Celery's task."""

    __slots__ = ("_limits", "_said", "app", "request")
    is_followed = False
    links = None

    def __init__(self, app: Any, said: dict[str, Any], limits: Limits) -> None:
        self.app = app
        self.request = CallRequest(said)
        self._limits = limits
        self._said = said

    @property
    def limits(self) -> Limits:
        """Implements `RunningTask.limits`."""
        return self._limits

    def pass_on(self, text: str, result: ToolResult) -> None:
        """Implements `RunningTask.pass_on`: nothing follows it."""

    def run(self) -> Coroutine[Any, Any, str]:
        """The call, from here to its end; raises what its task would."""
        return execute.run(self, self._said["args"][0])

    def ends_as(self, end: Callable[[], str]) -> None:
        """Have a task body that Celery's tracer runs now do this instead."""
        self._said[execute.END] = end


def untraced(app: Any, target: Callable[..., Any], args: tuple[Any, ...], bridge: Bridge[Any]) -> FastPathTask | None:
    """The task of a call that the tracer need not run, by what Celery wants run; `None` if it must."""
    if target is not fast_trace_task or len(args) != _OF_TRACER or args[0] != TASK:
        return None
    _, _, said, body, *_ = args
    if worker_runtime.current() is None or not app.settings.has_redis_broker or _has_listeners():
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


def register(app: Celery) -> None:
    """Give the app the task: acked when its result is stored, tried as often as the ledger lets it, limits from the message."""
    follow_revocations()
    # One function for all apps: Celery warns of two with the same name.
    app.task(name=TASK, base=CallTask, bind=True, acks_late=True, max_retries=MOST_RETRIES, Request=_REQUEST)(body)
