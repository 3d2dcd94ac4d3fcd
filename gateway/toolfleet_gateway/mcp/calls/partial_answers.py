"""Keeps the answers to a task's questions that come one by one, until all are there."""

import json
from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.contracts.inputs import PendingInput
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import GatewayKeys

_LASTS_SECONDS = 3600


class PartialAnswers:
    """The partial answers of all gateways.

    A later answer to the same question replaces the earlier one, until all questions are answered.
    """

    def __init__(self, redis: Redis, keys: GatewayKeys) -> None:
        self._redis = redis
        self._keys = keys

    async def add(self, call_id: str, asked: PendingInput, given: Mapping[str, Any]) -> dict[str, Any]:
        """All answers so far, with these. Raises `FleetUnavailable`."""
        name = self._keys.mcp_answers(call_id, asked.round)
        try:
            async with self._redis.pipeline() as pipeline:
                pipeline.hset(name, mapping={key: json.dumps(value) for key, value in given.items()})
                pipeline.expire(name, _LASTS_SECONDS)
                pipeline.hgetall(name)
                found = (await pipeline.execute())[-1]
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc
        return {_text(key): json.loads(value) for key, value in found.items()}

    async def answered(self, call_id: str, asked: PendingInput) -> frozenset[str]:
        """The requests that have their answers. Raises `FleetUnavailable`."""
        try:
            found = await self._redis.hkeys(self._keys.mcp_answers(call_id, asked.round))
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc
        return frozenset(map(_text, found))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
