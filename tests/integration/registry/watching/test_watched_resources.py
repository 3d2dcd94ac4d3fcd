"""What clients watch, and what has changed, in Redis: for as long as somebody says so, and in bounds."""

from typing import Any

import pytest
from redis.asyncio import Redis

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import ServerChange
from toolfleet_registry.redis.keys import GatewayKeys, Keys
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.watching import ServerChanges, WatchedResources

KEYS = GatewayKeys(Keys())
EGG = ServerChange("resource", "eggs://one")


async def test_what_is_watched_is_forgotten_by_silence(redis: Redis) -> None:
    """Each address lasts three minutes, whatever is said of others; another module's are its own."""
    watched = WatchedResources(redis, KEYS)
    await watched.watch("owls", ["eggs://one", "eggs://zwö", "eggs://one"])
    await watched.watch("crows", ["nuts://one"])
    await watched.watch("owls", [])
    assert await watched.of("owls") == {"eggs://one", "eggs://zwö"}

    await redis.zadd(KEYS.mcp_watched("owls"), {"eggs://one": 1})
    assert await watched.of("owls") == {"eggs://zwö"}
    await watched.watch("owls", ["eggs://three"])
    assert await redis.zcard(KEYS.mcp_watched("owls")) == 2
    assert 0 < await redis.pttl(KEYS.mcp_watched("owls")) <= 180_000
    assert await watched.of("crows") == {"nuts://one"}
    assert not await watched.of("mice")


async def test_a_thousand_resources_are_watched_at_most(redis: Redis) -> None:
    """Those that were asked for last."""
    watched = WatchedResources(redis, KEYS)
    await watched.watch("owls", [f"eggs://{number}" for number in range(600)])
    await redis.zincrby(KEYS.mcp_watched("owls"), -1000, "eggs://7")
    await watched.watch("owls", [f"nuts://{number}" for number in range(400)])
    assert len(await watched.of("owls")) == 1000
    await watched.watch("owls", ["nuts://last"])
    found = await watched.of("owls")
    assert (len(found), "nuts://last" in found, "eggs://7" in found) == (1000, True, False)


async def test_changes_are_read_in_order_from_a_place_on(redis: Redis) -> None:
    """Each once; who begins hears of what comes."""
    changes = ServerChanges(redis, KEYS)
    start = await changes.last()
    await changes.tell("owls", [EGG, ServerChange("prompts")])
    await changes.tell("crows", [ServerChange("resources")])

    first = await changes.after(start)
    again = await changes.after(first.until)

    assert first.changes == (
        ("owls", EGG),
        ("owls", ServerChange("prompts")),
        ("crows", ServerChange("resources")),
    )
    assert (again.changes, again.until, again.are_lost) == ((), first.until, False)
    assert await changes.last() == first.until


async def test_who_is_too_far_behind_is_told_so(redis: Redis) -> None:
    """Where the place that was read up to is gone, others may be gone that were not read."""
    changes = ServerChanges(redis, KEYS)
    await changes.tell("owls", [EGG])
    place = await changes.last()
    await changes.tell("owls", [EGG, EGG])
    await redis.xtrim(KEYS.mcp_changes, maxlen=1, approximate=False)

    found = await changes.after(place)

    assert (found.are_lost, len(found.changes)) == (True, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"module": "owls", "kind": "songs", "uri": ""},
        {"module": "owls", "kind": "resource", "uri": ""},
        {"module": "owls", "kind": "prompts", "uri": "eggs://one"},
        {"module": "", "kind": "prompts"},
        {"module": "owls", "kind": "resource", "uri": "x" * 2001},
        {b"\xff": b"\xff"},
    ],
)
async def test_what_is_no_change_is_passed_over(redis: Redis, fields: dict[Any, Any]) -> None:
    """A later release may tell of other things, and anybody of nonsense."""
    changes = ServerChanges(redis, KEYS)
    start = await changes.last()
    await redis.xadd(KEYS.mcp_changes, fields)
    await changes.tell("owls", [EGG])
    found = list((await changes.after(start)).changes)
    assert found == [("owls", EGG)]


async def test_a_redis_that_is_away_is_an_error_with_a_name() -> None:
    """And no wait without end."""
    async with async_client("redis://127.0.0.1:1/0") as redis:
        with pytest.raises(FleetUnavailable):
            await WatchedResources(redis, KEYS).of("owls")
        with pytest.raises(FleetUnavailable):
            await ServerChanges(redis, KEYS).after("0-0")
