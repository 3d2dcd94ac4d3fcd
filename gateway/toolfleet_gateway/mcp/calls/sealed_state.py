"""Signs and hides what a client carries from one round of a request to the next: it passes through other hands."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from toolfleet_gateway.auth.fleet_codec import FleetCodec, NotSealedHere
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.time import fleet_clock

_LASTS_SECONDS = 3600.0  # for the person who is asked
_MOST_FACTS = 5  # a later gateway's state with more of them is answered by such a gateway


class WrongState(ValueError):
    """A client has sent back what was not given to it, for this request, or too late."""


@dataclass(frozen=True, slots=True)
class AskedRound:
    """The question of the call that is answered.

    `binding`: of the approval that was asked for; '': it was a question of the module's.
    """

    call_id: str
    number: int
    binding: str = ""


class SealedStates:
    """Seals for one fleet: what one gateway has sealed another opens. The key is the fleet's signing key, or lies in its Redis."""

    def __init__(self, redis: Redis, keys: GatewayKeys, signing_keys: tuple[str, ...]) -> None:
        self._codec = FleetCodec(redis, keys, signing_keys)

    async def seal(self, asked: AskedRound, view: McpView, tool: str, arguments: Mapping[str, Any]) -> str:
        """The state for this caller and this request. Raises `FleetUnavailable`."""
        until = fleet_clock.now() + _LASTS_SECONDS
        facts: list[Any] = [asked.call_id, asked.number, _about(view, tool, arguments), until]
        if asked.binding:  # older gateways know four facts: they refuse what they cannot have asked
            facts.append(asked.binding)
        return await self._codec.seal(json.dumps(facts).encode())

    async def unseal(self, state: str, view: McpView, tool: str, arguments: Mapping[str, Any]) -> AskedRound:
        """Open a sealed state. Raises `WrongState` and `FleetUnavailable`."""
        try:
            facts: list[Any] = json.loads(await self._codec.unseal(state))
            if len(facts) < _MOST_FACTS:
                facts.append("")
            call_id, number, about, until, binding = facts
        except (NotSealedHere, ValueError):
            raise WrongState("requestState is none that was given here.") from None
        if about != _about(view, tool, arguments) or fleet_clock.now() > until:
            raise WrongState("requestState is of another request, or too old.")
        return AskedRound(call_id, number, binding)


def _about(view: McpView, tool: str, arguments: Mapping[str, Any]) -> str:
    said = json.dumps([view.who.name, view.who.caller.user_id, tool, arguments], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()
