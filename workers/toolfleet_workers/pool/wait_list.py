"""Keeps the jobs that were handed to the pool until there is a slot for them."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from toolfleet_tasks.fairness.fair_slots import FairSlots
from toolfleet_workers.pool.task_run import TaskRun

_REQUEST = 2  # where a message's headers are among the arguments of Celery's tracer


class WaitingRuns:
    """Jobs in their order. With `slots`, a job has been given its slot as its message was taken, unless it was put off until now.

    Those that were are in their queues' order, and in the way of nobody else.
    """

    def __init__(self) -> None:
        self.slots: FairSlots | None = None
        self._queues = dict[str, deque[tuple[str, TaskRun]]]()  # with the tags of their messages

    @property
    def needs_none(self) -> bool:
        """Whether a job that comes in may begin at once: so it is with every call while none is put off."""
        return self.slots is not None and not self.slots.is_deferring

    def add(self, job: TaskRun, args: Sequence[Any]) -> None:
        """Have a job wait; `args` are those of its tracer."""
        tag = queue = ""
        if self.slots is not None:
            headers = args[_REQUEST]
            tag = headers["properties"]["delivery_tag"]
            if self.slots.is_deferred(tag):
                queue = headers["delivery_info"]["routing_key"]
        waiting = self._queues.get(queue)
        if waiting is None:
            waiting = self._queues[queue] = deque()
        waiting.append((tag, job))

    def next(self, *, is_free: bool) -> TaskRun | None:
        """The next job that may begin, if there is one; `is_free`: whether the pool runs fewer than it may."""
        for queue, waiting in self._queues.items():
            tag, job = waiting[0]
            if self.slots.begin(tag, queue) if self.slots is not None else is_free:
                waiting.popleft()
                if not waiting:
                    del self._queues[queue]
                return job
        return None

    def clear(self) -> None:
        """Forget all of them."""
        self._queues.clear()
