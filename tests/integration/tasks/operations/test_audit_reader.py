"""The audit can be read: the latest lines, and those that come, whatever happens to Redis."""

import json
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.resources.audit import AuditReader, Wanted

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


async def test_the_latest_lines_come_first(reader: AuditReader, redis: Redis) -> None:
    """At most as many as were asked for; none of an empty audit."""
    assert (await reader.page(5)).lines == []
    await write(redis, *range(7))

    assert ids((await reader.page(3)).lines) == ["call-6", "call-5", "call-4"]
    assert len((await reader.page(100)).lines) == 7


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

    assert ids((await reader.page(10, wanted)).lines[::-1]) == [f"call-{number}" for number in expected]


@pytest.mark.parametrize("user", ['o"tis', "o\\tis", "J\u00fcrgen", "a b", "ada@example.com", ""])
async def test_a_user_of_any_name_is_found(reader: AuditReader, redis: Redis, user: str) -> None:
    """Also of one that JSON does not have letter for letter."""
    await write(redis, 0, user_id="nobody")
    await write(redis, 1, user_id=user)

    assert ids((await reader.page(10, Wanted(user=user))).lines) == ["call-1"]


async def test_rare_lines_are_found_far_back(reader: AuditReader, redis: Redis) -> None:
    """The audit is looked through 500 lines at a time, and each line once."""
    await write(redis, 0, 1, user_id="eve")
    async with redis.pipeline() as pipe:
        for number in range(2, 1_300):
            pipe.xadd(KEY, {"line": json.dumps({"call_id": f"call-{number}"})})
        await pipe.execute()

    assert ids((await reader.page(10, Wanted(user="eve"))).lines) == ["call-1", "call-0"]
    assert len((await reader.page(5_000)).lines) == 1_300


async def test_what_is_no_line_is_passed_over(reader: AuditReader, redis: Redis) -> None:
    """Another version's, or somebody else's."""
    await redis.xadd(KEY, {"other": "x"})
    await redis.xadd(KEY, {"line": b"\xff{"})
    await redis.xadd(KEY, {"line": "[1]"})
    await write(redis, 1)

    assert ids((await reader.page(10)).lines) == ["call-1"]


async def test_a_change_comes_once_it_has_ended(reader: AuditReader, redis: Redis) -> None:
    """What stands there while it is made does not come; among the latest lines it is, for it may be all that there will be."""
    begin = (await reader.page(1)).last
    await write(redis, 1, change="tool_disabled", is_begun=True)
    await write(redis, 2, change="tool_disabled")

    assert begin == "0-0"
    assert ids((await reader.behind(begin, 10)).lines) == ["call-2"]
    assert ids((await reader.page(5)).lines) == ["call-2", "call-1"]


async def test_who_asks_again_and_again_gets_each_line_once(reader: AuditReader, redis: Redis) -> None:
    """Behind the first entry of a page: also when nothing has come, and when Redis has lost what was there."""
    await write(redis, 1, 2)
    page = await reader.page(1)
    nothing = await reader.behind(str(page.last), 10)
    await write(redis, 3, 4, 5)
    first = await reader.behind(str(nothing.last), 2)
    second = await reader.behind(str(first.last), 2)
    await redis.delete(KEY)
    await redis.xadd(KEY, {"line": '{"call_id": "call-6"}'}, id="5-1")
    anew = await reader.behind(str(second.last), 2)

    assert [ids(part.lines) for part in (nothing, first, second)] == [[], ["call-3", "call-4"], ["call-5"]]
    assert ids((await reader.behind(str(anew.last), 2)).lines) == ["call-6"]
    with pytest.raises(ValueError, match="not the id of an entry"):
        await reader.behind("last", 2)


async def test_without_a_redis_there_is_nothing_to_read() -> None:
    """One sentence says what to set."""
    with pytest.raises(SettingsError, match="TOOLFLEET_REDIS_URL"):
        async with AuditReader.of(Settings(redis_url=None)):
            pass
