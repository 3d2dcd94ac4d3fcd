"""Has the fleet ask its modules what they offer when an agent wants to know now: agents need not reach any module."""

import asyncio
from collections.abc import Awaitable
from typing import cast

from redis.asyncio import Redis

from toolfleet_registry.directory.scripts import ASK
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.redis_errors import answering
from toolfleet_registry.time import machine_clock

_PATIENCE_SECONDS = 5
_KEPT_SECONDS = 300  # longer than any look
_PAUSE_SECONDS = 0.1
_BEGIN_SECONDS = 3.0  # a worker asks every half a second
_TOGETHER_MS = 1000  # of a thousand agents that hear of a module at once, each would have all modules asked
_DONE = b"done"


class RequestedProbes:
    """Requests to probe modules, in Redis. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def request(self, *, seconds: float) -> bool:
        """Request a probe, and wait for its end for at most `seconds`. Returns whether it was made.

        If no process has started it within some seconds, there is none that would. Requests before its start share one
        probe.
        """
        names = {"asked": self._keys.probe("asked"), "waiting": self._keys.probe(0)}
        command = ASK.command(**names, together_ms=_TOGETHER_MS, prefix=self._keys.probe(""))
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            number = int(await cast("Awaitable[int]", self._redis.execute_command(*command)))
        asked_at = machine_clock.monotonic()
        give_up_at = asked_at + min(seconds, _BEGIN_SECONDS)
        while machine_clock.monotonic() < give_up_at:
            async with answering(self._redis, seconds=_PATIENCE_SECONDS):
                found = await self._redis.get(self._keys.probe(number))
            if found in {_DONE, _DONE.decode()}:
                return True
            if found is not None:
                give_up_at = asked_at + seconds
            await asyncio.sleep(_PAUSE_SECONDS)
        return False

    async def begin(self, number: int) -> bool:
        """Claim the requested probe; returns whether this process is to make it, and no other one has claimed it."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            return bool(await self._redis.set(self._keys.probe(number), "begun", nx=True, ex=_KEPT_SECONDS))

    async def end(self, number: int) -> None:
        """Tell that it was made."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            await self._redis.set(self._keys.probe(number), _DONE, ex=_KEPT_SECONDS)
