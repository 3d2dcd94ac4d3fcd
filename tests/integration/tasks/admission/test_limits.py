"""Limits of users where calls are let in and where they end. With each transport, and a worker by hand."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from unittest.mock import ANY

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer, serve
from support.owls import echo
from support.programs.closed_port import closed_port
from support.waiting import PATIENCE_SECONDS
from support.workers.hand_worker import HandWorker
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.contracts import Terms
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.limits import Limit, refused_by
from toolfleet_tasks.messages import json_text

pytestmark = pytest.mark.usefixtures("same_day")

KEYS = Keys()
DAY = 86_400
ADA, BOB, NOBODY, ALSO_NOBODY = (
    Caller(user_id=name, permission="owner", allowed_modules="*") for name in ("ada", "bob", None, "")
)
RARE, SLOW, CHEAP, FREE = (
    ToolCall(tool_name=f"owls.{name}", arguments={"n": 1}) for name in ("rare", "slow", "cheap", "free")
)
ONCE = ToolCall(tool_name="owls.once", arguments={"n": 1})
KEYED = RARE.model_copy(update={"idempotency_key": "k"})
UNREACHABLE = ToolResult.failed("owls.rare", "module_unreachable", "away", effect_state="none", retryable=True)

Make = Callable[..., Settings]


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("rare", echo, daily_limit=2, effect="read")
    module.add("slow", echo, cooldown_seconds=60)
    module.add("once", echo, daily_limit=1, effect="once")
    module.add("cheap", echo, cost="cheap")
    module.add("also_cheap", echo, cost="cheap", daily_limit=9)
    module.add("dear", echo, cost="exorbitant")
    module.add("free", echo)
    with serve(module) as served:
        yield served


def limited_by(result: ToolResult) -> str:
    """The reason, once all else that is said of a call at its limit was found right."""
    assert (result.error_code, result.effect_state, result.retryable) == ("rate_limited", "none", True), result
    text, _, again = (result.error or "").partition(" Try again at ")
    at = datetime.strptime(again, "%Y-%m-%dT%H:%M:%SZ.").replace(tzinfo=UTC).timestamp()
    assert result.retry_after_seconds is not None
    assert -0.5 < at - result.audit.ts - result.retry_after_seconds < 1.5
    assert f"after {math.ceil(result.retry_after_seconds)} s" in (result.hint or "")
    return text


async def used(fleet: ToolFleet, caller: Caller = ADA, tool: str = "owls.rare") -> int:
    return (await fleet.remaining(caller)).tools[tool].used


async def test_the_call_over_the_daily_limit_is_refused(make: Make, worker: HandWorker) -> None:
    """At once, unpublished, until midnight; other users, and all who have no name together, have their own."""
    async with ToolFleet(settings=make()) as fleet:
        for caller in (ADA, BOB, NOBODY):
            for _ in range(2):
                await fleet.submit(RARE, caller)
            result = await fleet.call(RARE, caller)
            assert limited_by(result) == "Tool call refused: its daily limit of 2 calls is reached."
            assert (result.error or "").endswith("T00:00:00Z.")
        assert limited_by(await fleet.call(RARE, ALSO_NOBODY))
        assert len(await worker.queued()) == 6


async def test_a_cooldown_holds_between_two_calls(make: Make, worker: HandWorker, redis: Redis) -> None:
    """From the last one that was let in; when it is over, the next one is."""
    async with ToolFleet(settings=make()) as fleet:
        await fleet.submit(SLOW, ADA)
        result = await fleet.call(SLOW, ADA)
        assert limited_by(result) == "Tool call refused: it may be called once in 60 s."
        assert 50 < (result.retry_after_seconds or 0) <= 60
        await let_time_pass(redis, "owls.slow", seconds=61)
        await fleet.submit(SLOW, ADA)
        assert len(await worker.queued()) == 2


async def let_time_pass(redis: Redis, name: str, *, seconds: int, user: str = "ada") -> None:
    """As if all calls of a limit had been made so long before."""
    key = KEYS.limit(user, name)
    for call_id in await names_in(redis, key):
        await redis.zincrby(key, -seconds * 1000, call_id)


async def names_in(redis: Redis, key: str) -> list[str]:
    return [str(name) for name in await redis.zrange(key, 0, -1)]


async def test_a_new_day_brings_new_calls(make: Make, worker: HandWorker, redis: Redis) -> None:
    """And one of yesterday's that ends now with nothing done is given back to yesterday."""
    async with ToolFleet(settings=make()) as fleet:
        for _ in range(2):
            await fleet.submit(RARE, ADA)
        await let_time_pass(redis, "owls.rare", seconds=DAY)
        assert await used(fleet) == 0
        await fleet.submit(RARE, ADA)
        claim = await worker.take()
        assert await worker._ledger.take(claim, claim.call.terms) is None
        await worker.finish(claim, UNREACHABLE)
        assert await used(fleet) == 1


async def test_a_budget_holds_for_all_tools_of_a_class(make: Make) -> None:
    """A class that we do not know is an expensive one; tools without a class, and classes without a budget, are free."""
    async with ToolFleet(settings=make(cost_budgets={"cheap": 2, "expensive": 1})) as fleet:
        also, dear = (ToolCall(tool_name=f"owls.{name}", arguments={}) for name in ("also_cheap", "dear"))
        for call in (CHEAP, also, dear, FREE, FREE, FREE):
            await fleet.submit(call, ADA)
        for call in (CHEAP, also):
            reason = limited_by(await fleet.call(call, ADA))
            assert reason == "Tool call refused: the daily budget of 2 calls of 'cheap' tools is used up."
        assert limited_by(await fleet.call(dear, ADA))
        left = await fleet.remaining(ADA)
        assert {kind: use.left for kind, use in left.costs.items()} == {"cheap": 0, "expensive": 0}
        assert left.tools["owls.also_cheap"].used == 1
    async with ToolFleet(settings=make()) as fleet:
        await fleet.submit(CHEAP, ADA)


async def test_an_agent_can_read_what_is_left(make: Make) -> None:
    """For each limited tool that the caller may use, and each class with a budget; asking changes nothing."""
    async with ToolFleet(settings=make(cost_budgets={"cheap": 5})) as fleet:
        await fleet.submit(RARE, ADA)
        await fleet.submit(SLOW, ADA)
        await fleet.submit(CHEAP, ADA)
        left = await fleet.remaining(ADA)
        assert await fleet.remaining(ADA) == left.model_copy(update={"tools": ANY})
        assert set(left.tools) == {"owls.rare", "owls.slow", "owls.once", "owls.also_cheap"}
        assert left.tools["owls.rare"].model_dump() == {"used": 1, "left": 1, "free_at": None}
        assert (left.tools["owls.slow"].left, left.tools["owls.once"].left) == (None, 1)
        assert 50 < (left.tools["owls.slow"].free_at or 0) - time.time() <= 61
        assert left.costs["cheap"].model_dump() == {"used": 1, "left": 4, "free_at": None}
        assert left.resets_at % DAY == 0
        assert 0 < left.resets_at - time.time() < DAY + 5
        await fleet.submit(RARE, ADA)
        assert (await fleet.remaining(ADA)).tools["owls.rare"].free_at == left.resets_at
        assert (await fleet.remaining(Caller(user_id="ada"))).tools == {}


async def test_a_repeat_that_joins_counts_once(make: Make, worker: HandWorker) -> None:
    """Also when the limit is reached: it is the first call's."""
    async with ToolFleet(settings=make()) as fleet:
        calls = [ToolCall(tool_name="owls.rare", arguments={"n": 1}, idempotency_key=key) for key in "aaaba"]
        handles = [await fleet.submit(call, ADA) for call in calls]
        assert len({handle.id for handle in handles}) == 2
        assert await used(fleet) == len(await worker.queued()) == 2


async def test_a_call_that_did_nothing_is_given_back(make: Make, worker: HandWorker) -> None:
    """And the next one is let in; one that succeeded, or failed in its module, is not."""
    failed = ToolResult.failed("owls.rare", "module_error", "no", effect_state="unknown")
    for result, counts in ((UNREACHABLE, 0), (None, 1), (failed, 2)):
        async with ToolFleet(settings=make()) as fleet:
            await fleet.submit(RARE, ADA)
            claim = await worker.take()
            assert await worker._ledger.take(claim, claim.call.terms) is None
            await worker.finish(claim, result)
            assert await used(fleet) == counts


async def test_a_call_that_may_have_happened_counts(make: Make, worker: HandWorker) -> None:
    """It was taken back while it ran."""
    async with ToolFleet(settings=make()) as fleet:
        handle = await fleet.submit(ONCE, ADA)
        await worker.take()
        await handle.cancel()
        assert (await handle.result(PATIENCE_SECONDS)).effect_state == "unknown"
        assert limited_by(await fleet.call(ONCE, ADA))


async def test_calls_side_by_side_keep_the_limit(make: Make, worker: HandWorker) -> None:
    """Exactly so many are let in, also with keys of their own."""
    async with ToolFleet(settings=make()) as fleet:
        calls = [ToolCall(tool_name="owls.rare", arguments={"n": n}, idempotency_key=str(n)) for n in range(20)]
        await asyncio.gather(*(fleet.submit(call, ADA) for call in calls))
        assert len(await worker.queued()) == 2


async def test_the_terms_travel_with_the_call(make: Make, worker: HandWorker) -> None:
    """As far as they limit anything; a call without limits is as long as it always was."""
    async with ToolFleet(settings=make()) as fleet:
        for call in (RARE, CHEAP, FREE):
            await fleet.submit(call, ADA)
        limited, *others = await worker.queued()
    assert limited.terms == Terms(daily_limit=2)
    assert not any("terms" in json_text.dump(call) for call in others)


async def test_a_call_that_never_began_is_given_back(make: Make, redis: Redis) -> None:
    """To every limit that it counted in."""
    async with ToolFleet(settings=make(cost_budgets={"cheap": 5})) as fleet:
        handle = await fleet.submit(ToolCall(tool_name="owls.also_cheap"), ADA)
        await handle.cancel()
        assert (await handle.result(PATIENCE_SECONDS)).effect_state == "none"
        left = await fleet.remaining(ADA)
    assert (left.tools["owls.also_cheap"].used, left.costs["cheap"].used) == (0, 0)
    assert await counted(redis) == []


async def counted(redis: Redis) -> list[str]:
    """Every key by which a call counts."""
    kinds = ("toolfleet:limit:*", "toolfleet:held:*", "toolfleet:share:*", "toolfleet:intent:*")
    return [str(key) for kind in kinds for key in await redis.keys(kind)]


async def test_a_call_over_its_callers_share_counts_nowhere(make: Make) -> None:
    """It is not let in."""
    async with ToolFleet(settings=make(calls_per_caller=1)) as fleet:
        await fleet.submit(FREE, ADA)
        assert (await (await fleet.submit(RARE, ADA)).result(PATIENCE_SECONDS)).error_code == "busy"
        assert await used(fleet) == 0


async def test_a_call_that_is_not_published_counts_nowhere(make: Make, redis: Redis) -> None:
    """The broker is away: limit, share and idempotency key are given back, and the next try is not taken for a repeat."""
    async with ToolFleet(settings=make(broker_url=f"redis://127.0.0.1:{closed_port()}/0")) as fleet:
        for _ in range(2):
            result = await fleet.call(KEYED, ADA, timeout=1)
            assert (result.success, result.effect_state) == (False, "none")
    assert await counted(redis) == []


async def test_a_full_redis_lets_nobody_in(make: Make, redis: Redis) -> None:
    """Nothing is published, and what was noted before it refused more is taken back."""
    async with ToolFleet(settings=make()) as fleet:
        await fleet.call(FREE, ADA, timeout=0.1)
        await redis.flushall()
        await redis.config_set("maxmemory", 1)
        try:
            result = await fleet.call(KEYED, ADA, timeout=2)
        finally:
            await redis.config_set("maxmemory", 0)
    assert (result.success, result.effect_state) == (False, "none")
    assert "OOM" in (result.error or "")
    assert await counted(redis) + await redis.keys("tools*") == []


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (60_000, "60 s"),
        (1_234_567_500, "1234567.5 s"),
        (7_200_000, "2 h"),
        (30 * DAY * 1000, "30 d"),
        (1, "0.001 s"),
    ],
)
def test_a_cooldown_is_told_in_plain_numbers(ms: int, text: str) -> None:
    """However long it is."""
    refusal = refused_by("owls.slow", [Limit("owls.slow", "key", 0, ms)], [1, 0, ms, 0])
    assert f"it may be called once in {text}. Try again at" in (refusal.error or "")


async def test_a_sync_agent_can_ask_as_well(make: Make) -> None:
    """In the same words."""

    def ask() -> int:
        with ToolFleet.sync(settings=make()) as fleet:
            return fleet.remaining(ADA).tools["owls.rare"].used

    assert await asyncio.to_thread(ask) == 0
