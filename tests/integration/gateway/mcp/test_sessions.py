"""What MCP clients carry: bounded sessions of older ones in Redis, and a state from one round of a request to the next."""

from typing import Any

import pytest
from redis.asyncio import Redis

from support.there import there
from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.mcp import old_clients
from toolfleet_gateway.mcp.old_clients import ClientSessions
from toolfleet_gateway.mcp.tasks import AskedRound, SealedStates, WrongState
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts import Caller
from toolfleet_registry.redis.keys import GatewayKeys, Keys
from toolfleet_registry.system import fleet_clock

KEYS = GatewayKeys(Keys())
MEGABYTE = "x" * 2**20


def view_of(key_id: str) -> McpView:
    return McpView(Identity(Caller(user_id="ada"), key_id=key_id))


@pytest.fixture
def sessions(redis: Redis) -> ClientSessions:
    return ClientSessions(redis, KEYS, seconds=60)


@pytest.mark.parametrize(
    ("info", "capabilities", "kept_info", "kept_capabilities"),
    [
        ({"name": "owl", "version": "1"}, {"roots": {}}, {"name": "owl", "version": "1"}, {"roots": {}}),
        ({"name": MEGABYTE, "version": "1"}, {}, {"name": "x" * 256, "version": "1"}, {}),
        (
            {"name": "owl", "version": "1", "icons": [MEGABYTE], "padding": MEGABYTE},
            {},
            {"name": "owl", "version": "1"},
            {},
        ),
        ({"name": "owl", "version": [MEGABYTE]}, {}, {"name": "owl"}, {}),
        (MEGABYTE, MEGABYTE, None, None),
        ([MEGABYTE], [MEGABYTE], None, None),
        (
            {"name": "owl", "version": "1"},
            {"elicitation": {"form": {}}, "experimental": {"padding": MEGABYTE}, MEGABYTE: {}, "roots": MEGABYTE},
            {"name": "owl", "version": "1"},
            {"elicitation": {}},
        ),
    ],
)
async def test_a_session_keeps_little_of_what_a_client_says(
    redis: Redis, sessions: ClientSessions, info: Any, capabilities: Any, kept_info: Any, kept_capabilities: Any
) -> None:
    """A client's name, title and version are kept, each bounded, and capabilities as a whole or by their names."""
    session = await sessions.open(view_of("a"), "2025-11-25", info, capabilities)

    found = there(await sessions.find(session.id, view_of("a")))
    assert (found.client_info, found.capabilities) == (kept_info, kept_capabilities)
    assert await redis.strlen(KEYS.mcp_session(session.id)) < 10_000


async def test_a_key_has_so_many_sessions(
    redis: Redis, sessions: ClientSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one more those end that were silent for the longest time, and none of another key's."""
    monkeypatch.setattr(old_clients, "_MOST_SESSIONS", 10)
    other = await sessions.open(view_of("b"), "2025-11-25", {}, {})
    opened = [await sessions.open(view_of("a"), "2025-11-25", {}, {}) for _ in range(10)]
    for number, each in enumerate(opened):  # as if each had been silent for a second less than the one before it
        await redis.pexpire(KEYS.mcp_session(each.id), 1_000 * (number + 40))
    assert await sessions.find(opened[0].id, view_of("a")) is not None  # it has just been used

    last = await sessions.open(view_of("a"), "2025-11-25", {}, {})

    live = [each for each in (*opened, last) if await sessions.find(each.id, view_of("a")) is not None]
    assert live == [opened[0], *opened[3:], last]
    assert await sessions.find(other.id, view_of("b")) is not None
    assert await redis.scard(KEYS.mcp_sessions("key a")) == 9


async def test_sessions_that_are_over_make_room(
    redis: Redis, sessions: ClientSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have expired or were ended by their clients do not count, and cost no other one."""
    monkeypatch.setattr(old_clients, "_MOST_SESSIONS", 10)
    opened = [await sessions.open(view_of("a"), "2025-11-25", {}, {}) for _ in range(10)]
    for each in opened[:5]:
        await sessions.end(each)

    last = await sessions.open(view_of("a"), "2025-11-25", {}, {})

    assert [await sessions.find(each.id, view_of("a")) for each in (*opened[5:], last)] == [*opened[5:], last]
    assert await redis.scard(KEYS.mcp_sessions("key a")) == 6


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
