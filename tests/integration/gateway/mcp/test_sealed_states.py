"""What a client carries from one round of a request to the next is good for that caller and request, and for an hour."""

from typing import Any

import pytest
from redis.asyncio import Redis

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.mcp.tasks import AskedRound, SealedStates, WrongState
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts import Caller
from toolfleet_registry.redis.keys import GatewayKeys, Keys
from toolfleet_registry.system import fleet_clock

ASKED = AskedRound("call-1", 2)


def request(key_id: str = "k1", user_id: str = "ada", tool: str = "ask", **arguments: Any) -> tuple[McpView, str, Any]:
    return McpView(Identity(Caller(user_id=user_id), key_id=key_id), "owls"), tool, arguments


@pytest.mark.parametrize(
    ("again", "seconds", "is_good"),
    [
        (request(n=1), 3590, True),
        (request(n=1), 3610, False),
        (request("k2", n=1), 0, False),
        (request(user_id="eve", n=1), 0, False),
        (request(tool="pay", n=1), 0, False),
        (request(n=2), 0, False),
    ],
    ids=["the same", "too late", "another key", "another user", "another tool", "other arguments"],
)
async def test_a_state_is_good_for_its_request_and_for_an_hour(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, again: tuple[McpView, str, Any], seconds: float, is_good: bool
) -> None:
    """Anything else is refused, at every gateway of the fleet."""
    state = await SealedStates(redis, GatewayKeys(Keys()), ()).seal(ASKED, *request(n=1))
    then = fleet_clock.now() + seconds
    monkeypatch.setattr(fleet_clock, "now", lambda: then)
    other = SealedStates(redis, GatewayKeys(Keys()), ())

    if is_good:
        assert await other.unseal(state, *again) == ASKED
    else:
        with pytest.raises(WrongState):
            await other.unseal(state, *again)
