"""Holds calls back in their agent whose queue no worker consumes: until one does, or none has for `unserved_seconds`.

An agent that has only just connected cannot know which workers are about to start, and after a silence of Redis it is
unknown whether workers could reach it: the time counts from then on, at the earliest.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.config.run_file import why_not_applied
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import NotPublished
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import Refusal
from toolfleet_tasks.lua.consumers import READ
from toolfleet_tasks.messages.fleet_results import unknown_to_workers
from toolfleet_tasks.redis.connection import PipelinedConnection, RedisConnectionLost

_POLL_SECONDS = 0.25  # between two looks at a queue for which calls are held back
_SILENCE_SECONDS = 1.0  # after which Redis has been silent; as often workers note themselves
_ANSWER_SECONDS = 5.0  # for one look; then the calls are published, or find that Redis is away


class WorkerWait:
    """One agent's, over the `connection` to the Redis of the results. Belongs to the running loop; `spawn` runs something in the background."""

    def __init__(
        self,
        connection: PipelinedConnection,
        settings: Settings,
        known: KnownModules,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._known = known
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._trusted_since = self._loop.time()
        self._changes = dict[str, asyncio.Future[None]]()  # by queue
        self._is_closed = False
        connection.on_connect.append(self._trust_anew)

    def needs_worker(self, call: PublishedCall) -> bool:
        """Return whether the call may be refused for lack of a worker: not if workers are started when calls wait."""
        settings = self._settings
        if settings.unserved_seconds == math.inf or call.lane in settings.scale_from_zero_lanes:
            return False
        entry = self._known.entries.get(call.tool_name.partition(".")[0])
        return entry is None or not entry.scales_from_zero

    def is_in_vain(self, refusal: Refusal, *, asked_at: float) -> bool:
        """Return whether the call ends with its refusal: it is not its queue, or no worker has come for long enough.

        `asked_at`: when the call was sent, by the loop's clock.
        """
        if refusal.kind != "unserved":
            return True
        if self._loop.time() - asked_at > _SILENCE_SECONDS:
            self._trust_anew()
        return self._is_over(refusal.seconds)

    def end_of(self, call: PublishedCall, refusal: Refusal) -> Refusal:
        """Return what a call in vain ends with: a module that the fleet's directory does not have gets no worker by waiting."""
        module, entries = call.tool_name.partition(".")[0], self._known.entries
        if refusal.kind != "unserved" or not entries or module in entries:
            return refusal
        why = why_not_applied(module, self._settings.redis_url)
        return Refusal("unserved", result=unknown_to_workers(call.tool_name, why))

    async def change(self, queue: str, *, until: float) -> None:
        """Return when another try is worth it, by the loop's clock `until` at the latest.

        Raises `TimeoutError`, and `NotPublished` when the fleet is left.
        """
        if not self._is_closed:
            if queue not in self._changes:
                self._changes[queue] = self._loop.create_future()
                self._spawn(self._watch(queue))
            async with asyncio.timeout_at(until):
                await asyncio.shield(self._changes[queue])
        if self._is_closed:
            raise NotPublished("the fleet was left")

    def close(self) -> None:
        """End all waits."""
        self._is_closed = True
        for queue in list(self._changes):
            self._tell(queue)

    async def _watch(self, queue: str) -> None:
        """Look until a worker has come, or none will; where Redis is away, that is for others to wait for."""
        keys = self._settings.keys
        try:
            with contextlib.suppress(RedisConnectionLost, ResponseError, TimeoutError):
                seconds, command = 0.0, READ.command(notes=keys.consumers, queue=keys.queue(queue))
                while seconds >= 0 and not self._is_over(seconds):
                    await asyncio.sleep(_POLL_SECONDS)
                    async with asyncio.timeout(_ANSWER_SECONDS):
                        seconds = await self._connection.send(*command) / 1000
        finally:
            self._tell(queue)

    def _is_over(self, seconds: float) -> bool:
        return min(seconds, self._loop.time() - self._trusted_since) >= self._settings.unserved_seconds

    def _tell(self, queue: str) -> None:
        change = self._changes.pop(queue, None)
        if change is not None and not change.done():
            change.set_result(None)

    def _trust_anew(self) -> None:
        self._trusted_since = self._loop.time()
