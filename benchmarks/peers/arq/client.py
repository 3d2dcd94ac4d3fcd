"""arq's client. It polls for a result: every 10 ms here, every 500 ms by default."""

import json
from typing import Any

from arq import create_pool
from benchmarks.peers.arq.worker import POLL_SECONDS, SETTINGS, serialize
from benchmarks.work import Call

_SECONDS = 60


class Client:
    """`enqueue_job`, then `result`."""

    async def open(self) -> None:
        """Connect."""
        self._pool = await create_pool(SETTINGS, job_serializer=serialize, job_deserializer=json.loads)

    async def call(self, call: Call) -> dict[str, Any]:
        """Publish a call and await its result."""
        job = await self._pool.enqueue_job("execute", call.tool_name, call.arguments, call.user_id)
        return await job.result(timeout=_SECONDS, poll_delay=POLL_SECONDS)

    async def publish(self, call: Call) -> None:
        """Publish a call."""
        await self._pool.enqueue_job("execute", call.tool_name, call.arguments, call.user_id)


def connect(_variant: str) -> Client:
    """There is one kind."""
    return Client()
