"""Republishes a call from a worker, for its one retry or because it cannot be run now, without blocking the loop."""

from dataclasses import replace
from typing import Any

from toolfleet_tasks.messages.deaths import deaths_of
from toolfleet_tasks.messages.envelope import Label
from toolfleet_tasks.publish.publisher import Delivered
from toolfleet_tasks.publish.worker_publisher import worker_publisher
from toolfleet_tasks.tracing.message_trace import trace_of
from toolfleet_tasks.worker.running_task import RunningTask

# Of a message that others wrote without limits: the next one has none, either.
_UNLIMITED: tuple[Any, Any] = (None, None)


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


def _delivered(task: RunningTask) -> Delivered:
    """The message that came, which goes on as it is."""
    request = task.request
    hard_limit, soft_limit = request.timelimit or _UNLIMITED
    queue, limits = request.delivery_info["routing_key"], (soft_limit, hard_limit)
    label = Label(
        request.id, request.shadow or "", request.argsrepr or "", queue, limits, task.links, trace_of(request.get)
    )
    headers = None if task.app.settings.has_redis_broker else request.as_execution_options()["headers"]
    return Delivered(request.args[0], label, request.reply_to or "", deaths_of(request), headers)
