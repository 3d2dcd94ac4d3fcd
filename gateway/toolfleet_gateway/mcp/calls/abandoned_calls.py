"""Cancels calls whose clients have gone, unless a repeat follows them.

Who closes a stream wants nothing more of its call. But a broken stream looks the same, and its client sends the request again: what
has begun, and could be done twice, goes on for a grace, if the client has named it with a key by which a repeat finds it.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.contracts import Effect
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.gateway_keys import GatewayKeys
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.aio.closing import Closing
from toolfleet_tasks.calls.begun_calls import Owner
from toolfleet_tasks.calls.begun_handle import BegunHandle
from toolfleet_tasks.client.fleet import ToolFleet

log = get_logger(__name__)

_HARMLESS: frozenset[Effect | None] = frozenset({"read", "idempotent"})


class AbandonedCalls:
    """Those of one gateway. Another one's repeats are known by a note in Redis. Belongs to the running loop."""

    def __init__(
        self, fleet: ToolFleet, redis: Redis, keys: GatewayKeys, settings: GatewaySettings, closing: Closing
    ) -> None:
        self._fleet = fleet
        self._redis = redis
        self._keys = keys
        self._grace_seconds = settings.mcp_grace_seconds
        self._closing = closing
        self._followers = Counter[str]()
        self._ending = set[asyncio.Task[None]]()

    @contextmanager
    def following(self, call_id: str) -> Generator[None]:
        """A client waits for the call in this block."""
        self._followers[call_id] += 1
        try:
            yield
        finally:
            self._followers[call_id] -= 1
            if not self._followers[call_id]:
                del self._followers[call_id]

    async def joined(self, call_id: str) -> None:
        """A repeat has joined the call, perhaps one that was begun at another gateway."""
        lasts = round(2 * self._grace_seconds * 1000)
        with contextlib.suppress(RedisError, OSError):
            await self._redis.set(self._keys.mcp_joined(call_id), round(fleet_clock.now() * 1000), px=lasts)

    def leave(self, handle: BegunHandle, owner: Owner, *, has_key: bool) -> None:
        """A client has gone. What a gateway that ends has under way goes on: its clients come again, elsewhere."""
        if self._closing.has_begun:
            return
        call = handle.published
        is_patient = has_key and (call is None or call.effect not in _HARMLESS)
        self._start(self._cancel(handle.id, owner, left_at=fleet_clock.now(), is_patient=is_patient))

    def take_back(self, call_id: str, owner: Owner) -> None:
        """A client says that it does not want its call any more: that is no broken stream."""
        self._start(self._cancel(call_id, owner, left_at=fleet_clock.now(), is_patient=False))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._ending.add(task := asyncio.create_task(work, name="toolfleet-abandoned-call"))
        task.add_done_callback(self._ending.discard)

    async def settle(self, seconds: float) -> None:
        """Give those that are taken back so long to be."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=seconds)
        await self.aclose()

    async def aclose(self) -> None:
        """Let go of those that wait."""
        await end(self._ending)

    async def _cancel(self, call_id: str, owner: Owner, *, left_at: float, is_patient: bool) -> None:
        try:
            handle = await self._fleet.begun_calls.attach(call_id, owner)
            if handle is None:
                return
            try:
                if not is_patient or not await self._is_wanted(handle, left_at):
                    await handle.cancel()
            finally:
                handle.leave()
        except FleetUnavailable as exc:  # its deadline ends it
            log.info("abandoned_call_not_cancelled", call_id=call_id, reason=str(exc))

    async def _is_wanted(self, handle: BegunHandle, left_at: float) -> bool:
        """Whether the call has ended, or somebody has come for it, within the grace. One that waits in its queue has none."""
        if await handle.status() == "queued":
            return self._followers[handle.id] > 0
        ended = await handle.end_within(self._grace_seconds, self._closing)
        if ended is not None or self._closing.has_begun or self._followers[handle.id] > 0:
            return True
        try:
            joined_at = await self._redis.get(self._keys.mcp_joined(handle.id))
        except (RedisError, OSError):
            return True  # nobody can tell it to stop either
        return joined_at is not None and int(joined_at) >= left_at * 1000
