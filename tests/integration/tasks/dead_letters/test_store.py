"""The store of dead letters: those of all kinds together, each kind by itself, and what earlier processes have left."""

import asyncio
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from support.workers.dead_news import RECEIVER, bury
from toolfleet import Settings
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.dead_letters import store as store_file
from toolfleet_tasks.dead_letters.letters import DeadEntries
from toolfleet_tasks.dead_letters.store import DeadKind

KEYS = Keys()
WEBHOOKS = [KEYS.dead_webhooks(), KEYS.dead_webhooks("-order"), KEYS.dead_webhooks("-bytes")]
WAKES = [KEYS.dead_wakes, KEYS.dead_wakes_order, KEYS.dead_wakes_bytes]
OLD, NEW = f"1@{RECEIVER}", f"2@{RECEIVER}"


@pytest.fixture
def dead(redis: Redis, redis_url: str) -> DeadEntries:
    return DeadEntries(redis, Settings(redis_url=redis_url))


async def bury_call(redis: Redis, call_id: str, *, at: float) -> None:
    """One that nobody can read, which is enough to find it."""
    await redis.hset(KEYS.dead, call_id, "no letter")
    await redis.zadd(KEYS.dead_order, {call_id: at * 1000})


@pytest.fixture
async def letters(redis: Redis) -> None:
    """Of every kind, one of them where events for webhooks lay until they had a place of their own."""
    await bury_call(redis, "call-1", at=1)
    await bury(redis, "job-2", at=2)
    await bury(redis, OLD, kind="registry", at=3, old=True)
    await bury(redis, NEW, kind="registry", at=4)
    await bury(redis, "job-5", kind="notify", at=5)
    await bury_call(redis, "call-6", at=6)


@pytest.mark.usefixtures("letters")
async def test_many_who_ask_at_once_are_all_answered(dead: DeadEntries) -> None:
    """Nobody loses a connection to another who has just been answered."""

    async def ask() -> list[int]:
        return [len(await dead.list()) for _ in range(60)]

    assert await asyncio.gather(*(ask() for _ in range(8))) == [[6] * 60] * 8


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        (("call", "wakeup", "webhook"), ["call-6", "job-5", NEW, OLD, "job-2", "call-1"]),
        (("call",), ["call-6", "call-1"]),
        (("wakeup",), ["job-5", "job-2"]),
        (("webhook",), [NEW, OLD]),
        (("call", "webhook"), ["call-6", NEW, OLD, "call-1"]),
        ((), []),
    ],
    ids=str,
)
@pytest.mark.parametrize("at_once", [1, 2, 1000])
async def test_letters_are_listed_by_when_they_died(
    dead: DeadEntries, monkeypatch: pytest.MonkeyPatch, kinds: tuple[DeadKind, ...], found: list[str], at_once: int
) -> None:
    """Whatever their kinds and places, and however many of the others lie between them; a part of them can be asked for."""
    monkeypatch.setattr(store_file, "_CHUNK", at_once)

    assert [one.id for one in await dead.list(kinds)] == found
    for offset in range(len(found) + 1):
        assert [one.id for one in await dead.list(kinds, 2, offset)] == found[offset : offset + 2]


@pytest.mark.usefixtures("letters")
async def test_a_letter_says_of_what_kind_it_is(dead: DeadEntries) -> None:
    """In one form: what it was about, when it died, how often it was tried and what came of it."""
    found = {one.id: one for one in await dead.list()}

    assert {one.kind for one in found.values() if "@" in one.id} == {"webhook"}
    assert (found["job-5"].kind, found["job-5"].subject, found["job-5"].died_at) == ("wakeup", "talk-1", 5)
    assert (found[OLD].subject, found[OLD].attempts) == ("registry.disabled git.push", 3)
    assert (found[OLD].error, found[OLD].replayable) == ("ConnectError: refused", True)
    assert (found["call-1"].kind, found["call-1"].died_at, found["call-1"].body) == ("call", 1, None)
    assert not found["call-1"].replayable
    assert [await dead.find(one) for one in found] == [[one] for one in found.values()]
    assert await dead.find(OLD, ["wakeup"]) == []
    assert await dead.find("job-9") == []


@pytest.mark.usefixtures("letters")
async def test_letters_of_one_kind_are_dropped(dead: DeadEntries, redis: Redis) -> None:
    """By their ids, or all; those of other kinds stay, also where they lie beside them, and what they take is counted."""
    assert await dead.drop(["job-2", OLD, "job-9", "call-1"], ["wakeup", "call"]) == ("job-2", "call-1")
    assert int(await redis.get(KEYS.dead_wakes_bytes) or 0) == sum(map(len, await redis.hvals(KEYS.dead_wakes)))

    assert await dead.drop_all(["wakeup"]) == 1
    assert [one.id for one in await dead.list()] == ["call-6", NEW, OLD]
    assert await dead.drop_all(["webhook"]) == 2
    assert await redis.exists(*WAKES, *WEBHOOKS) == 0
    assert await dead.drop_all() == 1


@pytest.mark.usefixtures("letters")
async def test_webhooks_in_their_old_place_are_sent_again(dead: DeadEntries, redis: Redis) -> None:
    """Both are due for their receiver then, and dead no more."""
    for one in (OLD, NEW):
        assert await dead.events.replay(one)
    assert await redis.zrange(KEYS.webhooks_due(RECEIVER), 0, -1) == [OLD, NEW]
    assert await dead.list(["webhook"]) == []
    assert [one.id for one in await dead.list(["wakeup"])] == ["job-5", "job-2"]
    assert not await dead.events.replay(f"3@{RECEIVER}")
    await redis.delete(KEYS.webhooks_due(RECEIVER), *map(KEYS.wake, (OLD, NEW)))


@pytest.mark.parametrize("raw", [b"\xff\xfe", "owl 🦉".encode(), b"a b"])
async def test_ids_are_any_bytes(dead: DeadEntries, redis: Redis, raw: bytes) -> None:
    """What somebody has planted is listed, found and dropped."""
    names: list[Any] = [KEYS.dead_wakes, KEYS.dead_wakes_order]
    await redis.hset(names[0], raw, json.dumps({"kind": "continue"}))
    await redis.zadd(names[1], {raw: 1})
    (found,) = await dead.list()

    assert await dead.find(found.id) == [found]
    assert await dead.drop([found.id]) == (found.id,)
    assert await redis.exists(*names) == 0
