"""Publishes one of our own tasks at once, rather than with beat's next tick. Best effort: a lost one is only late."""

from typing import Any

from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.messages.ids import EVALUATE
from toolfleet_tasks.publish.worker_publisher import worker_publisher

log = get_logger(__name__)

_EVALUATE_SECONDS = 20.0  # for a job to hear of its call's end


async def control_soon(app: Any, task: str, *args: str) -> None:
    """Publish one of our own tasks from a worker of `app`. Raises nothing but cancellation."""
    try:
        await worker_publisher(app).control(task, *args)
    except Exception as exc:  # noqa: BLE001 - Redis, kombu and its transports raise anything
        log.warning("kick_not_published", task=task, args=args, error=str(exc) or repr(exc))


async def evaluate_soon(task: Any, job_id: str) -> None:
    """Evaluate a job whose call has ended: in this worker, if it has a loop, else in any.

    If that gets lost, the sweep finds it.
    """
    here, evaluate = worker_runtime.current(), task.app.evaluate_job
    if here is None or evaluate is None:
        await control_soon(task.app, EVALUATE, job_id)
    else:  # the call's message is not held for that
        here.later(evaluate(job_id, seconds=_EVALUATE_SECONDS))
