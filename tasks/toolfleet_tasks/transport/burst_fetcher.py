"""Takes calls while a worker's slots are full, from the queues that may go beyond them: as soon as their bells ring.

Beside the ordinary intake, which sleeps then. Has a line of its own for it, as the ordinary one must be able to listen to all
bells the moment that a slot is free. While slots are free it does nothing.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from toolfleet_tasks.redis.connection import Line
from toolfleet_tasks.transport.fetcher import Consumer, Intake, keep_taking

_BELL_SECONDS = 0.5  # also how long it may listen to a queue that may take no more, or not to one that may again


class BurstIntake:
    """Takes messages for `consumer`, by `intake`, on its `line`; listens on `bell`."""

    def __init__(self, consumer: Consumer, intake: Intake, *, line: Line, bell: Line, bell_prefix: str) -> None:
        self._consumer = consumer
        self._intake = intake
        self._line = line
        self._bell = bell
        self._bell_prefix = bell_prefix
        self._has_news = asyncio.Event()
        self._ring: asyncio.Future[Any] | None = None  # Redis was asked to tell of a bell, and perhaps has

    async def run(self) -> None:
        """Take messages until cancelled, or until a line is closed."""
        try:
            await keep_taking(self._look, self._line, self._bell)
        finally:
            if self._ring is not None:
                self._ring.cancel()  # nobody will ask what has become of it

    def begin(self) -> None:
        """The slots are full. Costs nothing if this is known already."""
        if self._ring is None:
            self._has_news.set()

    def wake(self) -> None:
        """Other queues may go beyond them than before, or more calls."""
        self._has_news.set()

    async def _look(self, may_hold: bool) -> bool:  # noqa: FBT001 - as `keep_taking` calls it
        queues = await self._queues()
        if not may_hold:
            await self._rung(queues)
        return await self._intake.take(self._consumer.burst)

    async def _queues(self) -> Sequence[str]:
        while True:
            self._has_news.clear()
            queues, _ = self._consumer.burst()
            if queues:
                return queues
            await self._answered()
            await self._has_news.wait()

    async def _rung(self, queues: Sequence[str]) -> None:
        """Wait for a bell, half a second, or news."""
        if self._ring is None:
            self._ring = self._bell.send("BRPOP", *(self._bell_prefix + queue for queue in queues), _BELL_SECONDS)
            self._ring.add_done_callback(lambda _: self._has_news.set())
        if not self._ring.done():
            await self._has_news.wait()
        await self._answered()

    async def _answered(self) -> None:
        """Hear Redis's answer, if it is there. A bell that is not for us rings on, for whoever has room."""
        if self._ring is None or not self._ring.done():
            return
        ring, self._ring = self._ring, None
        token = ring.result()
        if token is None:
            return
        queue = token[0].decode().removeprefix(self._bell_prefix)
        if queue in self._consumer.burst()[0]:
            self._intake.rung(queue)
        else:
            await self._bell.send("LPUSH", token[0], "1")
