"""Takes calls while a worker's slots are full, from the queues that may go beyond them: as soon as they are notified.

Beside the ordinary fetcher, which sleeps then. Has a connection of its own for it, as the ordinary one must be able to listen to all
notify keys the moment that a slot is free. While slots are free it does nothing.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.transport.fetcher import Consumer, Fetcher, keep_fetching

_BLOCK_SECONDS = 0.5  # also how long it may listen to a queue that may take no more, or not to one that may again


class BurstFetcher:
    """Takes messages for `consumer`, by `fetcher`, on its `connection`; listens on `blocking`."""

    def __init__(
        self,
        consumer: Consumer,
        fetcher: Fetcher,
        *,
        connection: PipelinedConnection,
        blocking: PipelinedConnection,
        notify_prefix: str,
    ) -> None:
        self._consumer = consumer
        self._fetcher = fetcher
        self._connection = connection
        self._blocking = blocking
        self._notify_prefix = notify_prefix
        self._has_changed = asyncio.Event()
        self._notification: asyncio.Future[Any] | None = None  # Redis was asked for a notification, and perhaps has

    async def run(self) -> None:
        """Take messages until cancelled, or until a connection is closed."""
        try:
            await keep_fetching(self._fetch, self._connection, self._blocking)
        finally:
            if self._notification is not None:
                self._notification.cancel()  # nobody will ask what has become of it

    def begin(self) -> None:
        """The slots are full. Costs nothing if this is known already."""
        if self._notification is None:
            self._has_changed.set()

    def wake(self) -> None:
        """Other queues may go beyond them than before, or more calls."""
        self._has_changed.set()

    async def _fetch(self, may_hold: bool) -> bool:  # noqa: FBT001 - as `keep_fetching` calls it
        queues = await self._queues()
        if not may_hold:
            await self._wait_for_notification(queues)
        return await self._fetcher.take(self._consumer.burst)

    async def _queues(self) -> Sequence[str]:
        while True:
            self._has_changed.clear()
            queues, _ = self._consumer.burst()
            if queues:
                return queues
            await self._answered()
            await self._has_changed.wait()

    async def _wait_for_notification(self, queues: Sequence[str]) -> None:
        """Wait for a notification, half a second, or a change."""
        if self._notification is None:
            self._notification = self._blocking.send(
                "BRPOP", *(self._notify_prefix + queue for queue in queues), _BLOCK_SECONDS
            )
            self._notification.add_done_callback(lambda _: self._has_changed.set())
        if not self._notification.done():
            await self._has_changed.wait()
        await self._answered()

    async def _answered(self) -> None:
        """Hear Redis's answer, if it is there. A notification that is not for us is passed on, to whoever has capacity."""
        if self._notification is None or not self._notification.done():
            return
        notification, self._notification = self._notification, None
        token = notification.result()
        if token is None:
            return
        queue = token[0].decode().removeprefix(self._notify_prefix)
        if queue in self._consumer.burst()[0]:
            self._fetcher.notified(queue)
        else:
            await self._blocking.send("LPUSH", token[0], "1")
