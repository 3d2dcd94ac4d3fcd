"""The audit can be read: the latest lines, and those that come, whatever happens to Redis."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.audit_reader import AuditReader, Wanted

KEY = Keys().audit


@pytest.fixture
async def reader(redis_url: str) -> AsyncIterator[AuditReader]:
    async with AuditReader.of(Settings(redis_url=redis_url)) as reader:
        yield reader


async def write(redis: Redis, *numbers: int, **fields: object) -> None:
    for number in numbers:
        line = {"call_id": f"call-{number}", "tool": "owls.echo", "user_id": "ada", "outcome": "success", **fields}
        await redis.xadd(KEY, {"line": json.dumps(line)})


def ids(lines: list[dict[str, object]]) -> list[object]:
    return [line["call_id"] for line in lines]


async def test_the_latest_lines_come_oldest_first(reader: AuditReader, redis: Redis) -> None:
    """At most as many as were asked for; none of an empty audit."""
    assert await reader.last(5) == []
    await write(redis, *range(7))

    assert ids(await reader.last(3)) == ["call-4", "call-5", "call-6"]
    assert len(await reader.last(100)) == 7
    assert await reader.last(0) == []


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(tool="owls.echo"), [0]),
        (Wanted(tool="owls"), [0, 1]),  # a module
        (Wanted(user="bob"), [1, 2]),
        (Wanted(outcome="refused"), [2]),
        (Wanted(outcome="busy"), [1]),  # an error code
        (Wanted(tool="owls", user="bob"), [1]),
        (Wanted(tool="owl"), []),
        (Wanted(only_changes=True), [3]),
    ],
)
async def test_lines_can_be_chosen(reader: AuditReader, redis: Redis, wanted: Wanted, expected: list[int]) -> None:
    """By tool or module, user, outcome or error code, and all of these together."""
    await write(redis, 0)
    await write(redis, 1, tool="owls.nap", user_id="bob", outcome="failed", error_code="busy")
    await write(redis, 2, tool="bank.pay", user_id="bob", outcome="refused")
    await write(redis, 3, tool="larks", user_id="ada", change="module_added")

    assert ids(await reader.last(10, wanted)) == [f"call-{number}" for number in expected]
    assert ids((await reader.page(10, wanted)).lines[::-1]) == [f"call-{number}" for number in expected]


@pytest.mark.parametrize("user", ['o"tis', "o\\tis", "J\u00fcrgen", "a b", "ada@example.com", ""])
async def test_a_user_of_any_name_is_found(reader: AuditReader, redis: Redis, user: str) -> None:
    """Also of one that JSON does not have letter for letter."""
    await write(redis, 0, user_id="nobody")
    await write(redis, 1, user_id=user)

    assert ids((await reader.page(10, Wanted(user=user))).lines) == ["call-1"]


async def test_rare_lines_are_found_far_back(reader: AuditReader, redis: Redis) -> None:
    """The whole audit is looked through, a page at a time, and each line once."""
    await write(redis, 0, 1, user_id="eve")
    async with redis.pipeline() as pipe:
        for number in range(2, 1_300):
            pipe.xadd(KEY, {"line": json.dumps({"call_id": f"call-{number}"})})
        await pipe.execute()

    assert ids(await reader.last(10, Wanted(user="eve"))) == ["call-0", "call-1"]
    assert len(await reader.last(5_000)) == 1_300


async def test_what_is_no_line_is_passed_over(reader: AuditReader, redis: Redis) -> None:
    """Another version's, or somebody else's."""
    await redis.xadd(KEY, {"other": "x"})
    await redis.xadd(KEY, {"line": b"\xff{"})
    await redis.xadd(KEY, {"line": "[1]"})
    await write(redis, 1)

    assert ids(await reader.last(10)) == ["call-1"]


async def test_lines_are_followed_from_the_last_one_read(reader: AuditReader, redis: Redis) -> None:
    """None is missed between looking and following, and none comes twice."""
    await write(redis, 1, 2)
    assert ids(await reader.last(1)) == ["call-2"]
    await write(redis, 3)
    async with aclosing(reader.follow()) as coming:
        first = await anext(coming)
        await write(redis, 4)
        second = await anext(coming)

    assert ids([first, second]) == ["call-3", "call-4"]


async def test_a_change_is_followed_once_it_has_ended(reader: AuditReader, redis: Redis) -> None:
    """What stands there while it is made does not come; among the latest lines it is, for it may be all that there will be."""
    await reader.last(1)
    await write(redis, 1, change="tool_disabled", is_begun=True)
    await write(redis, 2, change="tool_disabled")
    async with aclosing(reader.follow()) as coming:
        first = await anext(coming)

    assert first["call_id"] == "call-2"
    assert ids(await reader.last(5)) == ["call-1", "call-2"]


async def test_who_asks_again_and_again_gets_each_line_once(reader: AuditReader, redis: Redis) -> None:
    """Behind the first entry of a page: also when nothing has come, and when Redis has lost what was there."""
    await write(redis, 1, 2)
    page = await reader.page(1)
    nothing = await reader.behind(page.last, 10)
    await write(redis, 3, 4, 5)
    first = await reader.behind(nothing.last, 2)
    second = await reader.behind(first.last, 2)
    await redis.delete(KEY)
    await redis.xadd(KEY, {"line": '{"call_id": "call-6"}'}, id="5-1")
    anew = await reader.behind(second.last, 2)

    assert [ids(part.lines) for part in (nothing, first, second)] == [[], ["call-3", "call-4"], ["call-5"]]
    assert ids((await reader.behind(anew.last, 2)).lines) == ["call-6"]
    with pytest.raises(ValueError, match="not the id of an entry"):
        await reader.behind("last", 2)


async def test_following_goes_on_over_a_restart(tmp_path: Path) -> None:
    """With its data or without; whoever follows hears of both ends of the outage."""
    with faulty_redis(tmp_path) as redis:
        async with AuditReader.of(Settings(redis_url=redis.url)) as reader:
            heard: list[bool] = []
            add(redis, 1)
            await reader.last(1)
            async with aclosing(reader.follow(on_away=lambda error: heard.append(error is None))) as coming:
                with redis.restarted():
                    waiting = asyncio.ensure_future(anext(coming))
                    await wait_until(lambda: heard == [False], "it is noticed")
                add(redis, 2)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert (await waiting)["call_id"] == "call-2"
                redis.look.flushall()
                redis.look.xadd(KEY, {"line": '{"call_id": "call-3"}'}, id="5-1")  # its clock was set back meanwhile
                waiting = asyncio.ensure_future(anext(coming))
                with redis.restarted():
                    await wait_until(lambda: heard == [False, True, False], "it is noticed")
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert (await waiting)["call_id"] == "call-3"


async def test_without_a_redis_there_is_nothing_to_read() -> None:
    """One sentence says what to set."""
    with pytest.raises(SettingsError, match="TOOLFLEET_REDIS_URL"):
        async with AuditReader.of(Settings(redis_url=None)):
            pass


def add(redis: FaultyRedis, number: int) -> None:
    redis.look.xadd(KEY, {"line": json.dumps({"call_id": f"call-{number}"})})
