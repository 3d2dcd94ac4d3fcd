"""Wake-ups that wait, chosen by a filter, and tried or dropped all together: on a real Redis."""

import asyncio
import json
import math
from typing import Any

import pytest
from redis.asyncio import Redis

from support.workers.wakes import put, scores
from toolfleet import Settings
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.dead_letters import kept_wakes
from toolfleet_tasks.dead_letters.kept_wakes import FoundWakes, WantedWakes, is_mark, search_waiting
from toolfleet_tasks.dead_letters.letters import DeadEntries
from toolfleet_tasks.operations.change_trail import Actor
from toolfleet_tasks.operations.changes import HandledWakes, WakeupChanges

OLGA = Actor("olga", "key 1")


async def found(redis_url: str, wanted: WantedWakes = WantedWakes(), **options: Any) -> FoundWakes:  # noqa: B008 - it is frozen
    async with DeadEntries.of(Settings(redis_url=redis_url)) as dead:
        return await search_waiting(dead.events, wanted, **options)


def ids(found: FoundWakes) -> list[str]:
    return [wake.wake_id for wake in found.wakes]


async def lines(redis: Redis) -> list[dict[str, Any]]:
    entries: Any = await redis.xrange(Keys().audit)
    return [json.loads(fields["line"]) for _, fields in entries]


async def due_in(redis: Redis, wake_id: str, seconds: float, *, error: str = "") -> None:
    """It was tried, and is tried again then."""
    now = (await redis.time())[0]
    await redis.zadd(Keys().wakes_due, {wake_id: (now + seconds) * 1000})
    await redis.hset(Keys().wake(wake_id), mapping={"error": error, "tries": 1})


async def test_a_filter_chooses_by_kind_words_and_age(redis_url: str, redis: Redis) -> None:
    """Words in the id, the conversation or the tool, in any case; in the last error; and how long they have waited."""
    await put(redis, "job-1", conversation_id="Kitchen", since=100)
    await put(redis, "job-2", conversation_id="garden")
    await put(redis, "job-3.notify", kind="notify", conversation_id="garden")
    await put(redis, "job-4.then.0", kind="call", body=json.dumps({"job_id": "job-4", "tool_name": "owls.count"}))
    await due_in(redis, "job-2", 60, error="HTTP 500 Oops.")
    now = (await redis.time())[0]

    assert set(ids(await found(redis_url))) == {"job-1", "job-2", "job-3.notify", "job-4.then.0"}
    assert ids(await found(redis_url, WantedWakes(kind="notify"))) == ["job-3.notify"]
    assert ids(await found(redis_url, WantedWakes(kind="call", about="OWLS"))) == ["job-4.then.0"]
    assert ids(await found(redis_url, WantedWakes(about="kitchen"))) == ["job-1"]
    assert ids(await found(redis_url, WantedWakes(error="http 500"))) == ["job-2"]
    assert ids(await found(redis_url, WantedWakes(until=now - 50))) == ["job-1"]
    assert ids(await found(redis_url, WantedWakes(kind="registry"))) == []


@pytest.mark.parametrize("is_tied", [True, False])
async def test_pages_have_each_once(redis_url: str, redis: Redis, *, is_tied: bool) -> None:
    """Also of many that are due at the same moment."""
    for number in range(250):
        await put(redis, f"job-{number:03}")
        await redis.zadd(Keys().wakes_due, {f"job-{number:03}": 1 if is_tied else number})
    seen, behind = list[str](), None
    while True:
        page = await found(redis_url, behind=behind, limit=60)
        seen += ids(page)
        if (behind := page.next) is None:
            break

    assert seen == [f"job-{number:03}" for number in range(250)]


async def test_one_question_looks_at_so_many(redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it says where the next one goes on."""
    monkeypatch.setattr(kept_wakes, "MOST_WAITING_SEARCHED", 10)
    for number in range(15):
        await put(redis, f"job-{number:02}", conversation_id="last" if number == 14 else "other")
        await redis.zadd(Keys().wakes_due, {f"job-{number:02}": number})
    first = await found(redis_url, WantedWakes(about="last"))
    second = await found(redis_url, WantedWakes(about="last"), behind=first.next)

    assert (ids(first), first.next is None) == ([], False)
    assert (ids(second), second.next) == (["job-14"], None)


@pytest.mark.parametrize("text", ["", "x", "1~2", "nan~1~a", "1~nan~a", "a~b~c", f"1~2~{'a' * 2000}"])
def test_what_is_no_mark_is_none(text: str) -> None:
    """A cursor is what an answer has said, or it is refused."""
    assert not is_mark(text)
    assert is_mark("inf~-inf~job-1")


async def test_all_of_a_filter_are_dropped_step_by_step(redis_url: str, redis: Redis) -> None:
    """Each step has a line in the audit with who, which and how many; what comes meanwhile stays."""
    for number in range(25):
        await put(redis, f"job-{number:02}", conversation_id="old", since=10)
    await put(redis, "other", conversation_id="new", since=10)
    handled, behind, steps = HandledWakes(), None, 0
    async with WakeupChanges.of(Settings(redis_url=redis_url), OLGA) as changes:
        while steps == 0 or behind is not None:
            handled = await changes.drop_found(WantedWakes(about="old"), behind=behind, limit=10)
            behind, steps = handled.next, steps + 1
            await put(redis, f"late-{steps}", conversation_id="old")

    assert set(await scores(redis, Keys().wakes_due)) == {"other", "late-1", "late-2", "late-3"}
    assert [
        (line["change"], line["tool"], line["about"], line["user_id"], line["count"]) for line in await lines(redis)
    ] == [("wakeups_dropped", "all", "old", "olga", number) for number in (10, 10, 5)]


async def test_all_of_a_filter_are_tried_now(redis_url: str, redis: Redis) -> None:
    """Each is due at once, and met once; those that were due already are passed by."""
    now = (await redis.time())[0] * 1000
    for number in range(12):
        await put(redis, f"job-{number:02}", since=10)
        await due_in(redis, f"job-{number:02}", 3600)
    await put(redis, "overdue", since=10)
    done, passed, behind = 0, 0, None
    async with WakeupChanges.of(Settings(redis_url=redis_url), OLGA) as changes:
        for _ in range(10):
            step = await changes.replay_found(WantedWakes(), behind=behind, limit=5)
            done, passed, behind = done + step.done, passed + step.passed, step.next
            if behind is None:
                break

    assert (done, passed, behind) == (12, 1, None)
    assert all(due <= now + 60_000 for due in (await scores(redis, Keys().wakes_due)).values())
    assert {line["change"] for line in await lines(redis)} == {"wakeups_replayed"}


async def test_two_operators_drop_all_at_once(redis_url: str, redis: Redis) -> None:
    """Together they drop each once, and say so."""
    for number in range(100):
        await put(redis, f"job-{number:03}", since=10)

    async def drop(by: Actor) -> HandledWakes:
        async with WakeupChanges.of(Settings(redis_url=redis_url), by) as changes:
            return await changes.drop_found(WantedWakes(), limit=1_000)

    one, two = await asyncio.gather(drop(OLGA), drop(Actor("tom", "key 2")))
    assert one.done + two.done == 100
    assert await scores(redis, Keys().wakes_due) == {}


async def test_nothing_that_fits_leaves_no_line(redis_url: str, redis: Redis) -> None:
    """Nothing is changed."""
    async with WakeupChanges.of(Settings(redis_url=redis_url), OLGA) as changes:
        assert await changes.drop_found(WantedWakes(until=math.inf)) == HandledWakes()

    assert await lines(redis) == []
