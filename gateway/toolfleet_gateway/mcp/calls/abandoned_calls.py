"""Cancels calls whose clients have gone, unless a repeat follows them.

A client that closes a stream no longer wants its call. But a broken stream looks the same, and its client sends the
request again: a call that was started, and could be done twice, continues for a grace period, if the client has named
it with a key by which a repeat finds it.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.contracts import Effect
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.aio.closing import Closing
from toolfleet_tasks.calls.begun_calls import Owner
from toolfleet_tasks.calls.begun_handle import BegunHandle
from toolfleet_tasks.client.fleet import ToolFleet

log = get_logger(__name__)

_FOLLOWERS, _JOINS, _IS_ABANDONED = "followers", "joins", "abandoned"
_MORE_SECONDS = 30.0  # that a note lasts beyond the time that a client follows a call and waits for others
_HARMLESS: frozenset[Effect | None] = frozenset({"read", "idempotent"})


class AbandonedCalls:
    """The abandoned calls of one gateway.

    Followers at others are known by a note in Redis. Belongs to the running loop.
    """

    def __init__(
        self, fleet: ToolFleet, redis: Redis, keys: GatewayKeys, settings: GatewaySettings, closing: Closing
    ) -> None:
        self._fleet = fleet
        self._redis = redis
        self._keys = keys
        self._grace_seconds = settings.mcp_grace_seconds
        self._closing = closing
        waited = max(settings.mcp_wait_seconds, settings.mcp_task_seconds)
        self._lasts_ms = round((waited + 2 * settings.mcp_grace_seconds + _MORE_SECONDS) * 1000)
        self._ending = set[asyncio.Task[None]]()

    async def joined(self, call_id: str) -> None:
        """Note that a repeat follows the call, too, perhaps one that was started at another gateway."""
        with contextlib.suppress(RedisError, OSError):
            await self._count(call_id, +1)

    async def was_abandoned(self, call_id: str) -> bool:
        """Return whether the call was cancelled because it had no followers any more, and not by request."""
        try:
            return bool(await self._redis.hexists(self._keys.mcp_followers(call_id), _IS_ABANDONED))
        except (RedisError, OSError):
            return False

    def leave(self, handle: BegunHandle, owner: Owner, *, has_key: bool) -> None:
        """A client has gone. What a gateway that ends has under way goes on: its clients come again, elsewhere."""
        if self._closing.has_begun:
            return
        call = handle.published
        is_patient = call is None or call.effect not in _HARMLESS
        grace = (self._grace_seconds if is_patient else 0.0) if has_key else None
        self._start(self._cancel(handle.id, owner, grace=grace))

    def take_back(self, call_id: str, owner: Owner) -> None:
        """A client says that it does not want its call any more: that is no broken stream."""
        self._start(self._cancel(call_id, owner, grace=None))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._ending.add(task := asyncio.create_task(work, name="toolfleet-abandoned-call"))
        task.add_done_callback(self._ending.discard)

    async def settle(self, seconds: float) -> None:
        """Give running cancellations so long to finish."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=seconds)
        await self.aclose()

    async def aclose(self) -> None:
        """Let go of those that wait."""
        await end(self._ending)

    async def _cancel(self, call_id: str, owner: Owner, *, grace: float | None) -> None:
        """Cancel it; after a `grace` period, in seconds, unless it has a follower then; `None`: there can be none."""
        try:
            handle = await self._fleet.begun_calls.attach(call_id, owner)
            if handle is None:
                return
            try:
                if grace is None or not await self._is_wanted(handle, grace):
                    await handle.cancel()
            finally:
                handle.leave()
        except FleetUnavailable as exc:  # its deadline ends it
            log.info("abandoned_call_not_cancelled", call_id=call_id, reason=str(exc))

    async def _is_wanted(self, handle: BegunHandle, grace: float) -> bool:
        """Return whether the call has ended, or has a follower at the end of the grace period.

        One that waits in its queue has no such period.
        """
        try:
            followers, joins = await self._count(handle.id, -1)
            if followers > 0:
                return True
            if await handle.status() != "queued":
                ended = await handle.end_within(grace, self._closing)
                # Who has come since has a grace of their own, also if they have gone again.
                if ended is not None or self._closing.has_begun or (await self._count(handle.id, 0))[1] > joins:
                    return True
            await self._redis.hset(self._keys.mcp_followers(handle.id), _IS_ABANDONED, "1")
        except (RedisError, OSError):
            return True  # it cannot be told to stop either
        return False

    async def _count(self, call_id: str, more: int) -> tuple[int, int]:
        """Return the number of followers, and how many have joined it: its starter is not counted when it comes, but when it leaves."""
        name = self._keys.mcp_followers(call_id)
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hincrby(name, _FOLLOWERS, more)
            pipeline.hincrby(name, _JOINS, max(more, 0))
            pipeline.pexpire(name, self._lasts_ms)
            noted, joins, _ = await pipeline.execute()
        return 1 + int(noted), int(joins)
