"""Publishes the log messages of this worker's calls in Redis, in order, as soon as they are said.

Nothing is kept: who listens hears them. It has the connection on which progress is written, and what Redis does not take in time is
dropped.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context

from redis.exceptions import ResponseError

from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.messages.signatures import Signatures, after_json
from toolfleet_tasks.redis.connection import RedisConnectionLost
from toolfleet_tasks.worker_runtime import WorkerRuntime

log = get_logger(__name__)

_PATIENCE_SECONDS = 2.0  # for Redis: to be there, and to take a batch
_BATCH = 200  # messages, each of at most 16 KiB or a little more
_MOST_BYTES = 16 * 2**20  # that wait for Redis, of all calls together

Written = Callable[[], object]
"""Is called when a message was published, or dropped."""


class LogWriter:
    """The worker's one writer of log messages. Belongs to the loop of its connections."""

    def __init__(self, here: WorkerRuntime, settings: Settings) -> None:
        self._loop = here.loop
        self._connection = here.to(str(settings.redis_url), master=settings.sentinel_master, purpose="progress")
        self._keys, self._signatures = settings.keys, Signatures(settings, "log")
        self._waiting = deque[tuple[str, bytes, Written]]()
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._is_dropping = False
        here.settle.append(self.aclose)

    def add(self, call_id: str, text: str, written: Written) -> bool:
        """Publish a call's message soon. False if too many wait already; `written` is not called then. On the loop's thread."""
        content = after_json(text, self._signatures.of(call_id, text)).encode()
        if self._bytes + len(content) > _MOST_BYTES:
            return False
        self._bytes += len(content)
        self._waiting.append((self._keys.progress(call_id, "-log"), content, written))
        if self._task is None or self._task.done():
            # In a context of its own: it outlives the call that happens to be the first.
            self._task = self._loop.create_task(self._write_all(), name="toolfleet-logs", context=Context())
        return True

    async def aclose(self) -> None:
        """Write no more."""
        if self._task is not None:
            await end([self._task])

    async def _write_all(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await self._connection.connected()
                    await self._publish(batch)
                self._is_dropping = False
            except (RedisConnectionLost, TimeoutError, ResponseError) as exc:
                batch += self._drop(exc)
            except Exception as exc:  # noqa: BLE001 - a defect of ours: it must not end the log messages of all calls
                batch += self._drop(exc)
            for _, content, written in batch:
                self._bytes -= len(content)
                written()

    async def _publish(self, batch: list[tuple[str, bytes, Written]]) -> None:
        sent = [self._connection.send("PUBLISH", channel, content) for channel, content, _ in batch]
        for answer in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    def _drop(self, error: Exception) -> list[tuple[str, bytes, Written]]:
        """Whoever waits for what was said to be published must not wait for a Redis that is away."""
        if not self._is_dropping:  # it may be so for hours
            self._is_dropping = True
            log.warning("log_messages_dropped", error=str(error) or repr(error))
        dropped, self._waiting = list(self._waiting), deque()
        return dropped
