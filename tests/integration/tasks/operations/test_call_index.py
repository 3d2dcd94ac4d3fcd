"""Calls that have ended can be searched: all that the audit has, the latest first, whatever happens to Redis."""

import json
from collections.abc import AsyncIterator
from math import nan

import pytest
from redis.asyncio import Redis

from support.waiting import wait_until_answered
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.call_index import (
    MOST_CALLS,
    CallFilter,
    CallIndex,
    FoundCalls,
    TimePercentiles,
    percentiles_of,
)

KEY = Keys().audit
MINUTE = 60_000  # ms


@pytest.fixture
async def index(redis_url: str) -> AsyncIterator[CallIndex]:
    async with CallIndex.of(Settings(redis_url=redis_url)) as index:
        yield index


async def write(redis: Redis, *numbers: int, **fields: object) -> None:
    """One line each, of which call n ended n minutes after the epoch."""
    async with redis.pipeline(transaction=False) as pipe:
        for number in numbers:
            line = {"call_id": f"call-{number}", "tool": "owls.echo", "user_id": "ada", "outcome": "success", **fields}
            pipe.xadd(KEY, {"line": json.dumps(line)}, id=f"{(number + 1) * MINUTE}-0")
        await pipe.execute()


def ids(found: FoundCalls) -> list[int]:
    return [int(call.line["call_id"].removeprefix("call-")) for call in found.calls]


async def test_the_latest_calls_come_first_page_by_page(index: CallIndex, redis: Redis) -> None:
    """Each page goes on where the one before has ended, whatever has come meanwhile; nothing is there twice."""
    assert await index.find(CallFilter()) == FoundCalls([], 0, 0, is_whole=True)
    await write(redis, *range(5))
    await wait_until_answered(lambda: _has(index, 5), "the new calls")

    first = await index.find(CallFilter(), count=2)
    await write(redis, 5)
    second = await index.find(CallFilter(), before=first.next, count=2)
    last = await index.find(CallFilter(), before=second.next, count=2)

    assert (ids(first), ids(second), ids(last)) == ([4, 3], [2, 1], [0])
    assert (first.found, last.next) == (5, None)


async def _has(index: CallIndex, calls: int) -> bool:
    return (await index.find(CallFilter())).indexed == calls


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (CallFilter(module="owls"), [1, 0]),
        (CallFilter(tool="owls.nap"), [1]),
        (CallFilter(tool="owls"), []),
        (CallFilter(tool="bank.pay", module="owls"), []),
        (CallFilter(user="bob"), [2, 1]),
        (CallFilter(user="bo"), []),
        (CallFilter(conversation="talk-1"), [1, 0]),
        (CallFilter(conversation="talk-1", user="bob"), [1]),
        (CallFilter(conversation="talk"), []),
        (CallFilter(outcome="refused"), [2]),
        (CallFilter(error="busy"), [1]),
        (CallFilter(module="owls", user="bob", outcome="failed"), [1]),
        (CallFilter(since=2 * MINUTE), [2, 1]),
        (CallFilter(until=2 * MINUTE), [0]),
        (CallFilter(since=2 * MINUTE, until=3 * MINUTE, user="bob"), [1]),
    ],
)
async def test_calls_can_be_chosen(index: CallIndex, redis: Redis, wanted: CallFilter, expected: list[int]) -> None:
    """By module, tool, user, conversation, outcome, error code and time, and all of these together; changes of operators are no calls.

    A worker of an earlier version has the conversation among the decisions.
    """
    await write(redis, 0, conversation_id="talk-1")
    early = {"decisions": {"conversation_id": "talk-1"}}
    await write(redis, 1, tool="owls.nap", user_id="bob", outcome="failed", error_code="busy", **early)
    await write(redis, 2, tool="bank.pay", user_id="bob", outcome="refused")
    await write(redis, 3, tool="larks", user_id="bob", change="module_added")

    found = await index.find(wanted)

    assert ids(found) == expected
    assert found.found == len(expected)


async def test_what_is_old_is_read_beside_the_first_answers(index: CallIndex, redis: Redis) -> None:
    """The first answer has the latest calls, and says that older ones are still being read."""
    await write(redis, *range(2 * MOST_CALLS + 100), user_id="bob")

    first = await index.find(CallFilter(), count=1)
    await wait_until_answered(lambda: _has(index, 2 * MOST_CALLS + 100), "all calls")
    oldest = await index.find(CallFilter(until=2 * MINUTE))

    assert ids(first) == [2 * MOST_CALLS + 99]
    assert (first.indexed, first.is_whole) == (1_000, False)
    assert (ids(oldest), oldest.is_whole) == ([0], True)


async def test_what_the_audit_has_dropped_is_not_found(index: CallIndex, redis: Redis) -> None:
    """Nor counted, once somebody asks again; and the memory for it is given back segment by segment."""
    await write(redis, *range(3 * MOST_CALLS))
    await wait_until_answered(lambda: _has(index, 3 * MOST_CALLS), "all calls")
    await redis.xtrim(KEY, maxlen=10, approximate=False)

    async def is_dropped() -> bool:
        return (await index.find(CallFilter())).found == 10

    await wait_until_answered(is_dropped, "what the audit has dropped is forgotten")
    assert (await index.find(CallFilter())).indexed <= MOST_CALLS


async def test_a_redis_that_begins_anew_is_read_anew(index: CallIndex, redis: Redis) -> None:
    """What was known of the calls that it has lost is forgotten."""
    await write(redis, 7, 8)
    await wait_until_answered(lambda: _has(index, 2), "all calls")
    await redis.delete(KEY)
    await write(redis, 1)

    async def has_the_new() -> bool:
        return ids(await index.find(CallFilter())) == [1]

    await wait_until_answered(has_the_new, "the new audit")


async def test_lines_of_others_are_passed_over(index: CallIndex, redis: Redis) -> None:
    """What is no JSON, no object, or has no call: nothing fails for it."""
    for line in (
        "{",
        "[]",
        "7",
        '{"call_id": 7}',
        '{"call_id": "call-3", "tool": 5, "queued_ms": "soon", "duration_ms": -1}',
    ):
        await redis.xadd(KEY, {"line": line})
    await redis.xadd(KEY, {"other": "field"})

    found = await index.find(CallFilter())

    assert ids(found) == [3]


async def test_a_call_is_found_by_its_id(index: CallIndex, redis: Redis) -> None:
    """All its lines, oldest first; nothing for an id that no call has."""
    await write(redis, 1, 2)
    await redis.xadd(KEY, {"line": json.dumps({"call_id": "call-1", "outcome": "unknown"})})

    lines = await index.of_call("call-1")

    assert [call.line["outcome"] for call in lines] == ["success", "unknown"]
    assert await index.of_call("call-") == []


async def test_values_are_completed_the_most_frequent_first(index: CallIndex, redis: Redis) -> None:
    """Whatever their case, with the number of calls that have them; a call without an error code counts for none."""
    await write(redis, 0, 1, tool="Owls.echo")
    await write(redis, 2, 3, 4, tool="owls.nap", error_code="busy")
    await write(redis, 5, tool="bank.pay", user_id="ada")

    assert await index.values("tool", "OWL") == [("owls.nap", 3), ("Owls.echo", 2)]
    assert await index.values("module") == [("owls", 3), ("Owls", 2), ("bank", 1)]
    assert await index.values("error") == [("busy", 3)]
    assert await index.values("user", count=0) == []


async def test_charts_count_outcomes_by_time(index: CallIndex, redis: Redis) -> None:
    """In steps of the same length; times come with their percentiles, and a call without a time has none."""
    await write(redis, 0, 1, 2, queued_ms=5.0, duration_ms=10.0)
    await write(redis, 3, outcome="failed", queued_ms=100.0)

    charts = await index.charts(CallFilter(), since=MINUTE, until=5 * MINUTE, steps=2)

    assert charts.starts == [MINUTE, 3 * MINUTE]
    assert charts.outcomes == {"success": [2, 1], "failed": [0, 1]}
    assert (charts.queued.p50, charts.queued.p99, charts.ran.p99, charts.calls) == (5.0, 100.0, 10.0, 4)
    with pytest.raises(ValueError, match="until"):
        await index.charts(CallFilter(), since=5, until=5, steps=2)


def test_percentiles_are_of_the_nearest_rank() -> None:
    """Of nothing there are none; what is no number does not count."""
    assert percentiles_of([nan]) == TimePercentiles(None, None, None)
    assert percentiles_of([3.0, nan]) == TimePercentiles(3.0, 3.0, 3.0)
    assert percentiles_of([float(number) for number in range(1, 101)]) == TimePercentiles(50.0, 95.0, 99.0)


@pytest.mark.parametrize("before", ["", "-", "1", "1-", "x-1", "\u0661-1", f"{2**63}-0", "1-1-1"])
async def test_what_is_no_entry_is_refused(index: CallIndex, before: str) -> None:
    """With the same error as the audit's pages."""
    with pytest.raises(ValueError, match="not the id"):
        await index.find(CallFilter(), before=before)
