"""Notes in Redis why the last looks at modules brought nothing, for all who have not looked themselves."""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

from pydantic import TypeAdapter, ValidationError
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.redis_errors import answering

_PATIENCE_SECONDS = 5
_AS_BYTES = {NEVER_DECODE: True}


@dataclass(frozen=True, slots=True)
class ProbeFailure:
    """The reason why a module's last probe failed, and its time."""

    error: str
    at: float


_ANSWERED = re.compile(r"answered with status (\d+)")
_failure: TypeAdapter[ProbeFailure] = TypeAdapter(ProbeFailure)


class ProbeFailures:
    """The last failed probes, in Redis. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, keys: Keys, *, ttl_seconds: float) -> None:
        self._redis = redis
        self._key = keys.probe_failures
        self._ttl_seconds = math.ceil(ttl_seconds)

    async def note(self, failed: Mapping[str, ProbeFailure], well: Collection[str]) -> None:
        """Note what came of looks: which have failed, and which went well."""
        if not failed and not well:
            return
        async with (
            answering(self._redis, seconds=_PATIENCE_SECONDS),
            self._redis.pipeline(transaction=True) as pipeline,
        ):
            if well:
                pipeline.hdel(self._key, *well)
            if failed:
                pipeline.hset(self._key, mapping={name: _failure.dump_json(one) for name, one in failed.items()})
            pipeline.expire(self._key, self._ttl_seconds)
            await pipeline.execute()

    async def read(self) -> dict[str, ProbeFailure]:
        """Return the latest failure of each module whose last probe failed. Unreadable ones are left out."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            answer = await self._redis.execute_command("HGETALL", self._key, **_AS_BYTES)
        found = dict[str, ProbeFailure]()
        for name, text in cast("Mapping[bytes, bytes]", answer).items():
            try:
                found[name.decode(errors="replace")] = _failure.validate_json(text)
            except ValidationError:
                continue
        return found


LOCAL_FAULT = "TOOLFLEET_LOCAL_TOOLS: "
"""How the error of a look begins that a worker has made at itself: some of its own functions cannot be imported."""


def state_without_manifest(error: str | None) -> str:
    """Return the state of a module that never had a manifest: `unknown` without a probe, `answers 404` and the like, or `unreachable`.

    Local tools are `failed`. `error`: why its last probe failed.
    """
    if error is None:
        return "unknown"
    if error.startswith(LOCAL_FAULT):
        return "failed"
    answered = _ANSWERED.match(error)
    return f"answers {answered[1]}" if answered else "unreachable"
