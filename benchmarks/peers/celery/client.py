"""Stock Celery's callers: one that blocks, and an agent's loop that waits in threads."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.peers.celery.worker import execute
from benchmarks.work import Call
from celery.result import AsyncResult

_SECONDS = 60


class Client:
    """`apply_async`, then `get`."""

    def publish(self, call: Call) -> AsyncResult:
        """Publish a call."""
        return execute.apply_async((call.tool_name, call.arguments, call.user_id))

    def result(self, handle: AsyncResult) -> dict[str, Any]:
        """Wait for its result."""
        return handle.get(timeout=_SECONDS)


class ThreadedClient:
    """What an asyncio agent does with Celery: each call blocks a thread."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._client = Client()

    async def open(self) -> None:
        """Get the threads."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(self._threads))

    async def call(self, call: Call) -> dict[str, Any]:
        """Publish a call and wait for its result, in a thread."""
        return await asyncio.to_thread(lambda: self._client.result(self._client.publish(call)))

    async def publish(self, call: Call) -> None:
        """Publish a call, in a thread."""
        await asyncio.to_thread(self._client.publish, call)


def connect(variant: str) -> Client | ThreadedClient:
    """Blocking, or with so many threads under an event loop."""
    return ThreadedClient(int(variant)) if variant else Client()
