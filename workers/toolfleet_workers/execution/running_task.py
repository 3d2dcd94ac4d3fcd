"""Opens the ledger for a call's task, and publishes the call again from there."""

from asyncio import CancelledError
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.process import Process, this_process
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.envelope import Label, deaths_of, sender, usual_text
from toolfleet_tasks.tracing import trace_of
from toolfleet_tasks.transport.publisher import Delivered
from toolfleet_tasks.transport.redis_publisher import worker_publisher
from toolfleet_tasks.worker_runtime import RunningTask, WorkerRuntime

# Of a message that others wrote without limits: the next one has none, either.
_UNLIMITED: tuple[Any, Any] = (None, None)


class Superseded(CancelledError):
    """Another worker has the call: this attempt's result is discarded."""


async def publish_again(task: RunningTask, delay: float, *, retries: int, forgets_deaths: bool = False) -> None:
    """Put a task's call into its queue again, not to be started before `delay` seconds.

    Raises as `Publisher.republish` does.

    `forgets_deaths`: of the workers that have died with it, because it has done well since.
    """
    if getattr(task, "is_aside", False):
        return  # its message is in the queue, which is paused
    delivered = _delivered(task)
    if forgets_deaths and delivered.died:
        delivered = replace(delivered, died=())
    await worker_publisher(task.app).republish(delivered, delay=delay, retries=retries)


def message_of(task: RunningTask) -> str:
    """Return a task's message for its queue again, as it lies in Redis, to be started at any time."""
    return _delivered(task).message(origin=sender(), retries=task.request.retries or 0)


def _delivered(task: RunningTask) -> Delivered:
    """The message that came, which goes on in the form that workers of any version read."""
    request, text = task.request, task.request.args[0]
    # One that this worker cannot open, or that it refuses, goes on as it is.
    with suppress(MessageRefused, json_text.NewerMessage, ValueError):
        text = usual_text(text, task.app, task_id=request.id) if isinstance(text, str) else text
    hard_limit, soft_limit = request.timelimit or _UNLIMITED
    queue, limits = request.delivery_info["routing_key"], (soft_limit, hard_limit)
    label = Label(
        request.id, request.shadow or "", request.argsrepr or "", queue, limits, task.links, trace_of(request.get)
    )
    headers = None if task.app.settings.has_redis_broker else request.as_execution_options()["headers"]
    return Delivered(text, label, request.reply_to or "", deaths_of(request), headers)


def ledger_of(here: WorkerRuntime, settings: Settings, worker: str | None = None) -> Ledger:
    """The one of this worker's loop; `worker`: as Celery names it, where that is known."""
    ledger = here.part(_make_ledger, settings)
    ledger.tokens.serve(worker)
    return ledger


def calls_held(process: Process | None = None) -> Counter[str]:
    """Count the calls that a process, or this one, runs of each module, if it is a worker. May be called from any thread."""
    here: WorkerRuntime | None = (process or this_process()).worker
    ledger = None if here is None else here.made(_make_ledger)
    return Counter() if ledger is None else ledger.claims.held()


def _make_ledger(here: WorkerRuntime, settings: Settings) -> Ledger:
    connection = here.to(str(settings.redis_url), master=settings.sentinel_master)
    ledger = Ledger(connection, settings, writes_results=settings.has_redis_broker)
    ledger.tokens.begin_with(here.name)
    here.settle.append(ledger.claims.aclose)
    return ledger
