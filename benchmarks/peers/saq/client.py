"""saq's client. It looks for a result every 10 ms; saq's own `apply` every 500 ms by default, and once too often.

saq can tell of results as well, but what it tells before somebody listens is lost, and some calls never return.
"""

import asyncio
from typing import Any

from benchmarks.peers.saq.worker import queue
from benchmarks.work import Call

_POLL_SECONDS = 0.01
_RETRIES = 5  # a worker that starts sweeps away a call that it has taken in that moment; with retries, it comes back


class Client:
    """`enqueue`, then `refresh` until the job is complete."""

    async def open(self) -> None:
        """Connect."""
        await queue.connect()

    async def call(self, call: Call) -> dict[str, Any]:
        """Publish a call and await its result."""
        job = await queue.enqueue("execute", retries=_RETRIES, **call.body())
        while not job.completed:
            await asyncio.sleep(_POLL_SECONDS)
            await job.refresh()
        if job.error:
            raise RuntimeError(job.error)
        return job.result

    async def publish(self, call: Call) -> None:
        """Publish a call."""
        await queue.enqueue("execute", retries=_RETRIES, **call.body())


def connect(_variant: str) -> Client:
    """There is one kind."""
    return Client()
