"""Takes a call that a client without keys makes again soon, with the same arguments, for a repeat of the first, if an operator wants that."""

import json
from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.system import randomness
from toolfleet_tasks.client.fleet import ToolFleet

_HARMLESS = frozenset({"read", "idempotent"})


class RepeatWindow:
    """The window of one fleet, over all its gateways; `seconds` 0: there is none."""

    def __init__(self, fleet: ToolFleet, redis: Redis, keys: GatewayKeys, *, seconds: float) -> None:
        self._fleet = fleet
        self._redis = redis
        self._keys = keys
        self._ms = round(seconds * 1000)

    async def key(self, view: McpView, tool_name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return the key of this call and its repeats within the window; `None` if a repeat does no harm, or is another call.

        Raises `FleetUnavailable`: without Redis it is unknown whether it is a repeat.
        """
        if not self._ms:
            return None
        tool = await self._fleet.begun_calls.tool(tool_name, view.who.caller)
        if tool is None or tool.effect in _HARMLESS:
            return None
        said = json.dumps([view.who.caller.user_id, tool_name, arguments], sort_keys=True, separators=(",", ":"))
        try:
            return f"window:{await self._first(self._keys.mcp_window(said))}"
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc

    async def _first(self, name: str) -> str:
        """Return the value of the first call of the window; ours, if it is the first."""
        own = randomness.uuid4().hex
        while not await self._redis.set(name, own, nx=True, px=self._ms):
            known = await self._redis.get(name)
            if known is not None:  # it may have expired just now
                return known.decode() if isinstance(known, bytes) else str(known)
        return own
