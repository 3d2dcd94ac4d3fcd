"""Surrounds tries to wake a core with spans, in the trace of the job that the news are of."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.tracing.port import Tracing
from toolfleet_tasks.jobs.records import JobRecords
from toolfleet_tasks.messages.json_text import NewerMessage
from toolfleet_tasks.tracing.job_trace import woken
from toolfleet_tasks.wakeups.outbox import Around
from toolfleet_tasks.wakeups.sender import DeliveryAnswer

_TRACE_SECONDS = 1.0  # to find out where a job was made in a trace: its wake-up does not depend on it


def around_tries(tracing: Tracing | None, records: JobRecords) -> Around | None:
    """What the outbox has around each try; `None` where nothing is traced."""
    if tracing is None:
        return None

    async def around(job_id: str, url: str, post: Coroutine[Any, Any, DeliveryAnswer]) -> DeliveryAnswer:
        job = None
        with contextlib.suppress(OSError, ResponseError, MessageRefused, NewerMessage, TimeoutError):
            async with asyncio.timeout(_TRACE_SECONDS):
                job = await records.get(job_id)
        return await woken(tracing, None if job is None else job.spec, url, post, lambda answer: answer.accepted)

    return around
