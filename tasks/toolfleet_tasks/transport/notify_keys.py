"""Waits for notifications of a worker's queues, over a few connections if they are many: each has a batch of them.

Falling asleep on thousands of keys takes Redis milliseconds in which it serves no other client. So after a notification
only the connection whose batch had it listens again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_tasks.redis.connection import PipelinedConnection, RedisConnectionLost

BATCH_SIZE = 128  # keys: Redis is at them for a tenth of a millisecond
MOST_CONNECTIONS = 16  # of a worker; of more queues each gets a larger batch


class NotifyKeys:
    """The notify keys of one loop.

    `connection_of` gives a connection of its own for each batch, by number; `connection` is one that never blocks.

    A notification that is taken here is taken by no other worker: one that cannot be used must be given back.
    """

    def __init__(
        self, connection: PipelinedConnection, connection_of: Callable[[int], PipelinedConnection], prefix: str
    ) -> None:
        self._connection = connection
        self._connection_of = connection_of
        self._prefix = prefix
        self._queues: Sequence[str] = ()
        self._batches: list[tuple[PipelinedConnection, list[str]]] = []
        self._asked = dict[int, asyncio.Future[Any]]()  # by batch; Redis has not answered
        self._heard = deque[str]()
        self._error: Exception | None = None
        self._has_changed = asyncio.Event()
        self._is_resting = False

    async def notified(
        self,
        queues: Sequence[str],
        *,
        seconds: float,
        capacity: Callable[[], int],
        on_wait: Callable[[PipelinedConnection], object] | None = None,
    ) -> list[str]:
        """Queues that were notified, at most as many as there is `capacity` for then: at once, or none after `seconds`.

        `queues` is another object when there are others. `on_wait` gets the connection that begins to wait for all of them, if it is
        one: what it sends there, Redis runs with the notification. Raises `RedisConnectionLost`, and what Redis says to it.
        """
        self._is_resting = False
        self._has_changed.clear()
        self._distribute(queues)
        for number, (connection, notify_keys) in enumerate(self._batches):
            if number not in self._asked:
                await connection.connected()
                self._listen(number, connection, notify_keys, seconds)
                if on_wait is not None and len(self._batches) == len(self._asked) == 1 and not self._heard:
                    on_wait(connection)
        if not (self._heard or self._error or self._has_changed.is_set()):
            await self._wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return [self._heard.popleft() for _ in range(min(capacity(), len(self._heard)))]

    def rest(self) -> None:
        """Hear nothing until `notified` is asked again: what comes meanwhile is for others."""
        self._is_resting = True
        while self._heard:
            self.give_back(self._heard.popleft())

    def give_back(self, queue: str) -> None:
        """Pass a notification on that was taken."""
        self._connection.send("LPUSH", self._prefix + queue, "1").add_done_callback(_seen)

    def _distribute(self, queues: Sequence[str]) -> None:
        if queues is self._queues:
            return
        self._queues = queues
        size = max(BATCH_SIZE, -(-len(queues) // MOST_CONNECTIONS))
        parts = [queues[start : start + size] for start in range(0, len(queues), size)]
        self._batches = [
            (self._connection_of(number), [self._prefix + queue for queue in part]) for number, part in enumerate(parts)
        ]

    def _listen(self, number: int, connection: PipelinedConnection, notify_keys: Sequence[str], seconds: float) -> None:
        notification = self._asked[number] = connection.send("BRPOP", *notify_keys, seconds)
        notification.add_done_callback(lambda notification: self._on_answer(number, notification))

    async def _wait(self) -> None:
        if len(self._asked) > 1:
            await self._has_changed.wait()
            return
        with contextlib.suppress(RedisConnectionLost, ResponseError):  # which are kept
            await next(iter(self._asked.values()))  # a turn of the loop sooner

    def _on_answer(self, number: int, notification: "asyncio.Future[Any]") -> None:
        del self._asked[number]
        self._has_changed.set()
        if notification.cancelled():
            return
        if (error := notification.exception()) is not None:
            self._error = error if isinstance(error, Exception) else None
        elif (token := notification.result()) is not None:
            queue = token[0].decode().removeprefix(self._prefix)
            if self._is_resting:
                self.give_back(queue)
            else:
                self._heard.append(queue)


def _seen(reply: "asyncio.Future[Any]") -> None:
    """Ignore a lost command: workers check by themselves."""
    if not reply.cancelled():
        reply.exception()
