"""Asks about calls that their modules go on with while their queue is paused: the messages that would have them asked about wait there.

The worker that asked last goes on asking. Should it die, or end, they are asked about when the queue is resumed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.messages.deaths import DIED
from toolfleet_tasks.worker.running_task import RunningTask
from toolfleet_tasks.worker_runtime import WorkerRuntime

log = get_logger(__name__)

_POLL_SECONDS = 1.0  # the ledger says whether it is time to ask the module

Run = Callable[[RunningTask, str], Awaitable[str]]
"""Runs a call's message, as `execute.run`."""


class PausedCalls:
    """A worker's, on its loop."""

    def __init__(self, here: WorkerRuntime) -> None:
        self._here = here
        self._following = dict[str, asyncio.Task[None]]()  # by call id
        here.settle.append(self.aclose)

    def follow(self, task: RunningTask, message: str, run: Run) -> None:
        """Run the message of a call that waits for its module again and again, until its queue is resumed, or the call has ended."""
        if not getattr(task.request, "is_parked", False) or task.is_followed or not task.app.settings.is_fast:
            return  # with stock parts it is Celery that stores a result, and here is none of its tasks
        call_id, queue = task.request.id, task.request.delivery_info["routing_key"]
        if call_id in self._following or not self._here.is_paused(queue):
            return
        following = self._here.loop.create_task(self._follow(_Aside(task), message, run), name="toolfleet-paused-call")
        self._following[call_id] = following
        following.add_done_callback(lambda _: self._following.pop(call_id, None))

    async def aclose(self) -> None:
        """Ask no more."""
        await end([*self._following.values()])

    async def _follow(self, task: "_Aside", message: str, run: Run) -> None:
        while self._here.is_paused(task.request.delivery_info["routing_key"]):
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await run(task, message)
            except (Ignore, Reject):
                continue
            except Retry:  # its message waits in the queue
                return
            except Exception:  # it is asked about once more when the queue is resumed
                log.exception("paused_call_not_followed", call_id=task.request.id)
                return
            return


class _Aside:
    """As `RunningTask`: stands for a task that has ended. Nothing is published for it: its message waits in the queue."""

    is_followed = False
    links = None
    is_aside = True

    def __init__(self, task: RunningTask) -> None:
        self.app = task.app
        self.request = _Said(task.request)

    def limits(self, soft: float | None, hard: float | None) -> NoReturn:
        """As `RunningTask`. No attempt is begun in a paused queue."""
        del soft, hard
        raise Reject(requeue=True)

    def pass_on(self, text: str, result: ToolResult) -> None:
        """As `RunningTask`: nothing follows it."""


class _Said:
    """What the task's request has said, as long as that was there."""

    _NAMES = (DIED, "args", "argsrepr", "delivery_info", "hostname", "id", "reply_to", "retries", "shadow", "timelimit")

    def __init__(self, request: Any) -> None:
        self._said: Mapping[str, Any] = {name: getattr(request, name, None) for name in self._NAMES}
        self.is_stored = self.is_parked = False

    def __getattr__(self, name: str) -> Any:
        return self._said.get(name)
