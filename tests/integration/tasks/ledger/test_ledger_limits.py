"""A call's limits where it begins and ends, whatever its agent knew of them. Every fact holds as well when each script is sent twice."""

from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.workers.ledgers import ENDING, SUCCESS, TURNED_AWAY, begun, close, finish, run_out, taken, worker_ledger
from toolfleet_registry.contracts import PublishedCall, Terms, ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import AdmissionControl, Refusal
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.messages import fleet_results

pytestmark = pytest.mark.usefixtures("same_day")

TOOL = "research.search_docs"
KEY, BUDGET = Keys().limit("ada", TOOL), Keys().limit("ada", "cheap")
TWICE = Terms(daily_limit=2)
SETTINGS = {"cost_budgets": {"cheap": 1}}
BUDGETED = Terms(cost="cheap", cooldown_seconds=0.001)


def call(name: str, terms: Terms | None = None, **fields: Any) -> PublishedCall:
    return published(call_id=name, user_id="ada", terms=terms, **fields)


async def admit(ledger: Ledger, one: PublishedCall) -> Refusal | None:
    admission = AdmissionControl(Settings(cost_budgets={"cheap": 9}))
    return await admission.ask(ledger._connection, one)


async def test_a_call_that_was_not_counted_is_counted_where_it_begins(ledger: Ledger, redis: Redis) -> None:
    """Once, however often it is delivered; an agent that does not ask gains nothing."""
    for name in "ab":
        for _ in range(2):
            assert await taken(ledger, call(name), TWICE) is None
    refusal = await taken(ledger, call("c"), TWICE)

    assert refusal is not None
    assert (refusal.error_code, refusal.effect_state) == ("rate_limited", "none")
    assert await redis.zrange(KEY, 0, -1) == ["a", "b"]
    assert not await redis.exists(Keys().held("c"))


async def test_a_call_that_was_let_in_is_not_asked_again(ledger: Ledger, redis: Redis) -> None:
    """It has its place; from its beginning on for good."""
    for name in "ab":
        assert await admit(ledger, call(name, TWICE)) is None
    assert await taken(ledger, call("b", TWICE), TWICE) is None

    assert await redis.zrange(KEY + ":unbegun", 0, -1) == ["a"]
    assert (await taken(ledger, call("c"), TWICE)) is not None


async def test_an_agent_that_knows_of_a_higher_limit_gains_nothing(ledger: Ledger) -> None:
    """Those that were let in first keep their place."""
    for name in "abc":
        assert await admit(ledger, call(name, Terms(daily_limit=9))) is None
    refusals = [await taken(ledger, call(name), TWICE) for name in "abc"]

    assert [refusal is None for refusal in refusals] == [True, True, False]


async def test_all_limits_hold_or_none_counts(ledger: Ledger, redis: Redis) -> None:
    """A call that one of them refuses counts in no other."""
    assert await taken(ledger, call("a"), BUDGETED) is None
    refusal = await taken(ledger, call("b"), Terms(daily_limit=9, cost="cheap"))

    assert "budget" in ((refusal and refusal.error) or "")
    assert (await redis.zrange(KEY, 0, -1), await redis.zrange(BUDGET, 0, -1)) == (["a"], ["a"])


@pytest.mark.parametrize("taker", ["agent", "worker", "both"])
async def test_a_call_that_ends_with_nothing_done_is_given_back(ledger: Ledger, redis: Redis, taker: str) -> None:
    """In every limit that it counted in, whoever had counted it."""
    one = call("a", BUDGETED if taker != "worker" else None)
    if taker != "worker":
        assert await admit(ledger, one) is None
    claim = await begun(ledger, one)
    if taker != "agent":
        assert await taken(ledger, claim, Terms(daily_limit=2, cost="cheap")) is None
    assert await redis.exists(KEY, BUDGET) == 2
    await finish(ledger, claim, TURNED_AWAY)

    assert await redis.keys("toolfleet:limit:*") + await redis.keys("toolfleet:held:*") == []


async def test_a_call_counts_until_its_last_attempt_has_ended(ledger: Ledger, redis: Redis) -> None:
    """Between two attempts its place is not free for others; the second one counts no more than the first."""
    one = call("a", TWICE)
    assert await admit(ledger, one) is None
    first = await begun(ledger, one)
    assert await taken(ledger, first, TWICE) is None
    await close(ledger, first)
    second = await begun(ledger, one)
    assert await redis.zcard(KEY) == 1
    assert await taken(ledger, second, TWICE) is None
    assert await redis.zcard(KEY) == 1
    await finish(ledger, second, SUCCESS)

    assert await redis.zrange(KEY, 0, -1) == ["a"]


async def test_a_worker_that_dies_loses_nothing_and_gains_nothing(ledger: Ledger, redis: Redis) -> None:
    """It was killed after the call had begun to count: whoever gets it next finds it counted, and may give it back."""
    one = call("a", effect="read")
    dead = await begun(ledger, one)
    assert await taken(ledger, dead, TWICE) is None
    await run_out(redis, "a")
    claim = await begun(ledger, one)
    assert await taken(ledger, claim, TWICE) is None
    assert await redis.zcard(KEY) == 1
    assert claim.so_far == "unknown"
    await finish(ledger, claim, SUCCESS)

    assert await redis.zcard(KEY) == 1


@pytest.mark.parametrize("mode", ["end", "withdraw", "refuse"])
async def test_whoever_ends_it_from_outside_gives_it_back(ledger: Ledger, redis: Redis, mode: str) -> None:
    """If it never began; an agent that has not counted it itself, and knows of no limits, as well."""
    one = call("a")
    assert await taken(ledger, one, TWICE) is None
    if mode == "refuse":
        await ledger.refuse("a", fleet_results.message_refused(TOOL, "it is forged"))
    else:
        await getattr(ledger, mode)(one, ENDING, data_id=ANY_DATA)

    assert await redis.exists(KEY) == 0


async def test_what_may_have_happened_is_not_given_back(ledger: Ledger, redis: Redis) -> None:
    """It was ended from outside while it ran, or where its record may be lost."""
    for name, starts in (("a", True), ("b", False)):
        one = call(name)
        assert await taken(ledger, await begun(ledger, one) if starts else one, TWICE) is None
        await ledger.end(one, ENDING, data_id="")
    assert await redis.zrange(KEY, 0, -1) == ["a", "b"]


async def test_a_call_of_yesterday_is_not_counted_today(ledger: Ledger, redis: Redis) -> None:
    """It was let in before midnight and begins after it, when others have made its day forgotten."""
    one = call("a", TWICE)
    assert await admit(ledger, one) is None
    await redis.zadd(KEY, {"a": 1})
    for name in "bc":
        assert await taken(ledger, call(name), TWICE) is None
    assert await redis.zrange(KEY, 0, -1) == ["b", "c"]
    assert await taken(ledger, one, TWICE) is None

    assert await redis.zrange(KEY, 0, -1) == ["b", "c"]
    claim = await begun(ledger, one)
    await finish(ledger, claim, TURNED_AWAY)
    assert await redis.zrange(KEY, 0, -1) == ["b", "c"]


async def test_a_call_that_comes_late_is_judged_as_a_new_one(ledger: Ledger, redis: Redis) -> None:
    """Its agent's clock was behind, so that it was taken for one that nobody would begin."""
    late = call("a", TWICE, deadline_at=1)
    assert await admit(ledger, late) is None
    for name in "bc":
        assert await taken(ledger, call(name), TWICE) is None

    assert isinstance(await taken(ledger, late, TWICE), ToolResult)
    assert await redis.zrange(KEY, 0, -1) == ["b", "c"]


async def test_a_worker_that_knows_of_no_limits_leaves_the_agents(ledger: Ledger, redis: Redis, redis_url: str) -> None:
    """It has no budget for the class, say: the call counts for good in what its agent has counted it in."""
    one = call("a", Terms(cost="cheap"))
    assert await admit(ledger, one) is None
    async with worker_ledger(redis_url) as poor:
        assert await taken(poor, await begun(poor, one), one.terms) is None

    assert await redis.zrange(BUDGET, 0, -1) == ["a"]
    assert await redis.zrange(BUDGET + ":unbegun", 0, -1) == []


async def test_a_worker_that_has_lost_the_call_counts_nothing(ledger: Ledger, redis: Redis) -> None:
    """Another has begun it, or it has ended with nothing done and was given back: it hears of that."""
    one, heard = call("a", effect="read"), list[str]()
    lost = await begun(ledger, one)
    lost.on_lost = lambda: heard.append("lost")
    await run_out(redis, "a")
    claim = await begun(ledger, one)
    for _ in range(2):
        assert await taken(ledger, lost, TWICE) is None
        assert await redis.exists(KEY) == 0
        await finish(ledger, claim, TURNED_AWAY)

    assert heard == ["lost", "lost"]
