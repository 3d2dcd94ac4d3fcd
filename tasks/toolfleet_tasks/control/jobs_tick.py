"""Defines the tasks of jobs: beat has any worker do due work; after a job's call has ended, that job is evaluated.

Their work is plugged into the app (`app.resume_jobs`, `app.evaluate_job`), for it publishes calls. Both are safe to run
twice, late, or never: due work stays due until a worker has done it.
"""

from typing import Any

from celery import Celery, Task

from toolfleet_registry.settings import Settings
from toolfleet_tasks.clock import MOST_OFFSET_SECONDS
from toolfleet_tasks.control.housekeeping import register_task
from toolfleet_tasks.greenlet_bridge import bridged
from toolfleet_tasks.messages.ids import EVALUATE, RESUME
from toolfleet_tasks.queues import CONTROL

_SECONDS = 20.0  # of one task's work; what is left is the next one's
_MARGIN_SECONDS = 10
# The control queue may be so far behind, in addition to clocks' differences: a tick that is dropped is one that all workers may
# drop, for ever. Those that pile up meanwhile cost next to nothing: of several in one worker one works.
_SHORTEST_EXPIRY_SECONDS, _TICKS = 30.0, 10


def register(app: Celery) -> None:
    """Give the app the tasks. Each works for a bounded time; the limits are the net around that."""
    limits = {"soft_time_limit": _SECONDS + _MARGIN_SECONDS, "time_limit": _SECONDS + 2 * _MARGIN_SECONDS}
    register_task(app, RESUME, _resume, **limits)
    register_task(app, EVALUATE, _evaluate, **limits)


def schedule(settings: Settings) -> dict[str, Any]:
    """The beat entry. A tick that was not served for long is dropped: they do the same work."""
    interval = settings.jobs_interval_seconds
    expires = max(_SHORTEST_EXPIRY_SECONDS, _TICKS * interval) + MOST_OFFSET_SECONDS
    return {"resume-jobs": {"task": RESUME, "schedule": interval, "options": {"queue": CONTROL, "expires": expires}}}


@bridged
async def _resume(task: Task) -> None:
    resume = task.app.resume_jobs
    if resume is not None:
        await resume(seconds=_SECONDS)


@bridged
async def _evaluate(task: Task, job_id: str) -> None:
    evaluate = task.app.evaluate_job
    if evaluate is not None:
        await evaluate(job_id, seconds=_SECONDS)
