"""The least that a queue can do, and so what Python and Redis allow: no guarantee, no library.

`python -m benchmarks.peers.raw.worker one|many|own`: each call and each result in a command of its own, or all that are
ready at once; or that, with our worker's connections to modules instead of aiohttp's.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.peers.raw.lists import CALLS, Lists
from benchmarks.posting import AsyncPoster
from benchmarks.work import CONCURRENCY


class Worker:
    """Runs up to `CONCURRENCY` calls at a time."""

    def __init__(self, post: Callable[..., Awaitable[Any]], *, many: bool) -> None:
        self._lists = Lists()
        self._many = many
        self._post = post
        self._free = CONCURRENCY
        self._room = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._results: dict[str, list[str]] = {}
        self._has_results = asyncio.Event()

    async def run(self) -> None:
        """Take calls and run them, for ever."""
        await self._lists.open()
        flushing = asyncio.ensure_future(self._flush())
        while not flushing.done():
            if not self._free:
                self._room.clear()
                await self._room.wait()
            if self._many:
                items = await self._lists.take_many(CALLS, self._free)
            else:
                items = await self._lists.take_one(CALLS)
            for item in items:
                self._free -= 1
                self._running.add(task := asyncio.create_task(self._execute(json.loads(item))))
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._free += 1
        self._room.set()

    async def _execute(self, message: dict[str, Any]) -> None:
        result = await self._post(**message["call"])
        answer = json.dumps({"id": message["id"], "result": result})
        if self._many:
            self._results.setdefault(message["reply_to"], []).append(answer)
            self._has_results.set()
        else:
            await self._lists.redis.lpush(message["reply_to"], answer)

    async def _flush(self) -> None:
        while await self._has_results.wait():
            self._has_results.clear()
            ready, self._results = self._results, {}
            pipeline = self._lists.redis.pipeline(transaction=False)
            for name, answers in ready.items():
                pipeline.lpush(name, *answers)
            await pipeline.execute()


async def main() -> None:
    """Run a worker."""
    if sys.argv[1] == "own":
        from benchmarks.peers.toolfleet.poster import OwnPoster  # its environment is ours

        await Worker(OwnPoster(), many=True).run()
    else:
        await Worker(AsyncPoster(), many=sys.argv[1] == "many").run()


if __name__ == "__main__":
    asyncio.run(main())
