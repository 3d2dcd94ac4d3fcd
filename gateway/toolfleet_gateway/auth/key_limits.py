"""Counts the requests of keys' holders, over all gateways: requests in a second, and open streams.

Each count is one step inside Redis, by Redis's clock. A lost gateway's streams count as open until their lease ends.
Without an answer no sender is let in who has a limit: then a call could not be published either.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from toolfleet_gateway.auth.identity import AuthRefused, Identity, unavailable
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import GatewayKeys, Keys
from toolfleet_registry.redis.script import Parameters, Script, ScriptFolder
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.system import randomness

LEASE_SECONDS: Final = 30.0
"""The seconds for which a stream counts after its gateway was lost."""

_RENEWALS = 3  # within a lease: two may fail
_SECONDS = 2.0  # for an answer
_RETRY_SECONDS = 1.0  # for a stream that may not be opened: others end at any time

FILES = ScriptFolder(Path(__file__).parent / "lua")
_TAKE_REQUEST, _TAKE_STREAM = FILES.script("key_limits/take_request"), FILES.script("key_limits/take_stream")
_RENEW_STREAM, _TAKEN = FILES.script("key_limits/renew_stream"), FILES.script("key_limits/taken")


@dataclass(frozen=True, slots=True)
class Taken:
    """The use of limits: how many `requests` of the last second still count, and how many `streams` are open."""

    requests: float
    streams: int


class KeyLimits:
    """Counts for those identities that have a limit; for others Redis is not asked."""

    def __init__(self, redis: Redis, keys: Keys, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._redis, self._names, self._lease_seconds = redis, GatewayKeys(keys), lease_seconds

    async def take_request(self, identity: Identity) -> None:
        """Count a request. At once there may be as many as in a second. Raises `AuthRefused`: 429 with when, or 503."""
        rate = identity.requests_per_second
        if rate is None:
            return
        bucket, interval = self._names.requests(identity.name), max(round(1e6 / rate), 1)
        named = {"bucket": bucket, "interval_us": interval, "burst": max(int(rate), 1)}
        if left := await self._ask(_TAKE_REQUEST, _TAKE_REQUEST.parameters(**named)):
            raise AuthRefused(
                "too-many-requests",
                f"This key may send {rate:g} requests a second.",
                retry_after_seconds=left / 1e6,
            )

    @asynccontextmanager
    async def stream(self, identity: Identity) -> AsyncGenerator[None]:
        """Have a stream open inside. Raises `AuthRefused`: 429 if there are as many as may be, or 503."""
        if identity.streams is None:
            yield
            return
        streams, stream_id = self._names.streams(identity.name), randomness.uuid4().hex
        named = {"streams": streams, "lease_ms": self._lease_ms, "most": identity.streams, "id": stream_id}
        renewing: asyncio.Task[None] | None = None
        try:
            if not await self._ask(_TAKE_STREAM, _TAKE_STREAM.parameters(**named)):
                raise AuthRefused(
                    "too-many-streams",
                    f"This key may have {identity.streams} streams open at once.",
                    retry_after_seconds=_RETRY_SECONDS,
                )
            renewing = asyncio.create_task(self._renew(streams, stream_id), name="toolfleet-stream-lease")
            yield
        finally:  # also of one that was opened for a client that has gone meanwhile
            if renewing is not None:
                renewing.cancel()
                await asyncio.wait({renewing})
            with contextlib.suppress(FleetUnavailable):  # else its lease ends it
                async with answering(self._redis, seconds=_SECONDS):
                    await self._redis.execute_command("ZREM", streams, stream_id)

    async def taken(self, identity: Identity) -> Taken:
        """Return a sender's use of its limits. Raises `AuthRefused`, 503."""
        names = {
            "bucket": self._names.requests(identity.name),
            "streams": self._names.streams(identity.name),
            "lease_ms": self._lease_ms,
        }
        filling_us, streams = await self._ask(_TAKEN, _TAKEN.parameters(**names))
        return Taken(filling_us / 1e6 * (identity.requests_per_second or 0), streams)

    @property
    def _lease_ms(self) -> int:
        return round(self._lease_seconds * 1000)

    async def _renew(self, streams: str, stream_id: str) -> None:
        named = {"streams": streams, "lease_ms": self._lease_ms, "id": stream_id}
        while True:
            await asyncio.sleep(self._lease_seconds / _RENEWALS)
            with contextlib.suppress(AuthRefused):
                await self._ask(_RENEW_STREAM, _RENEW_STREAM.parameters(**named))

    async def _ask(self, script: Script, parameters: Parameters) -> Any:
        try:
            async with answering(self._redis, seconds=_SECONDS):
                try:
                    return await self._redis.execute_command("EVALSHA", script.digest, *parameters)
                except NoScriptError:
                    return await self._redis.execute_command("EVAL", script.text, *parameters)
        except FleetUnavailable as exc:
            raise unavailable("What this key has sent cannot be counted") from exc
