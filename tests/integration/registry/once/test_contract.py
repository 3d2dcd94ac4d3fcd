"""The stores of what is done once: one promise, and six ways to keep it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.there import there
from toolfleet.sdk import MemoryReplies, RedisReplies, SQLiteReplies
from toolfleet.webhooks import RedisSeen, SQLSeen
from toolfleet_registry.once.port import OnceStore, Record

MakeStore = Callable[[], OnceStore]


@pytest.fixture(params=["memory", "file", "redis", "seen in redis", "seen in sqlite", "seen in postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def make_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    """Makes another store over the same records, as another process has it; for a memory the same one."""
    own, made, place = MemoryReplies(), list[OnceStore](), kind.rpartition(" ")[2]
    urls = {"redis": "redis_url", "sqlite": "sqlite_url", "postgresql": "postgres_url"}
    url = str(request.getfixturevalue(urls[place])) if place in urls else ""
    kinds: dict[str, MakeStore] = {
        "memory": lambda: own,
        "file": lambda: SQLiteReplies(tmp_path / "state" / "replies.db"),
        "redis": lambda: RedisReplies(url),
        "seen in redis": lambda: RedisSeen(url),
    }

    def make() -> OnceStore:
        made.append(kinds.get(kind, lambda: SQLSeen(url))())
        return made[-1]

    yield make
    for store in made:
        await store.aclose()


@pytest.fixture
def running(kind: str) -> Record:
    """At work, as a module or a core notes it."""
    return Record("running", "t1", "" if kind.startswith("seen") else "f", time.time() + 60)


@pytest.fixture
def done(kind: str) -> Record:
    """Done, with the reply where that is kept."""
    if kind.startswith("seen"):
        return Record("done", "t2")
    return Record("done", "t2", "f", reply='{"success":true,"result":"é \\u0000"}')


def same(found: Record | None, record: Record) -> bool:
    """Whether it is that record. Clocks differ: a store that machines share has one of its own."""
    if found is None or record.state != "running":
        return found == record
    return abs(found.until - record.until) < 5 and replace(found, until=record.until) == record


async def test_a_record_replaces_the_one_that_was_seen_and_no_other(
    make_store: MakeStore, running: Record, done: Record
) -> None:
    """From nothing to running to done to nothing; whoever saw something else writes nothing."""
    one, other = make_store(), make_store()
    assert await one.get("c") is None
    assert not await one.swap("c", "t1", done)
    assert await one.swap("c", None, running)
    assert not await other.swap("c", None, running)
    assert same(await other.get("c"), running)
    assert not await other.swap("c", "t", done)  # the start of a token is none
    assert await other.swap("c", "t1", done)
    assert same(await one.get("c"), done)
    assert not await one.swap("c", "t1", None)
    assert await one.swap("c", "t2", None)
    assert await other.get("c") is None
    assert not await other.swap("c", "t2", done)


async def test_of_many_that_begin_at_once_one_does(make_store: MakeStore, running: Record) -> None:
    """However many processes share the store."""
    stores = [make_store() for _ in range(5)]
    begun = await asyncio.gather(*(stores[n % 5].swap("c", None, replace(running, token=f"t{n}")) for n in range(50)))
    assert sum(begun) == 1
    record = there(await stores[0].get("c"))
    assert begun[int(record.token[1:])]


async def test_of_many_that_take_one_over_at_once_one_does(make_store: MakeStore, running: Record) -> None:
    """All of them have seen the same record."""
    stores = [make_store() for _ in range(5)]
    assert await stores[0].swap("c", None, running)
    begun = await asyncio.gather(*(stores[n % 5].swap("c", "t1", replace(running, token=f"n{n}")) for n in range(20)))
    assert sum(begun) == 1


async def test_a_lease_is_prolonged_under_the_same_token(make_store: MakeStore, running: Record) -> None:
    """And shortened; whoever asks sees until when it holds, by his own clock."""
    store = make_store()
    assert await store.swap("c", None, running)
    for seconds in (600, -600):
        later = replace(running, until=running.until + seconds)
        assert await store.swap("c", "t1", later)
        assert same(await make_store().get("c"), later)


async def test_names_are_apart(make_store: MakeStore, running: Record, done: Record) -> None:
    """Whatever is in them."""
    store = make_store()
    names = ["c", "C", "c ", "c:d", "ç", "%", "*", "c" * 200]
    for number, name in enumerate(names):
        assert await store.swap(name, None, replace(running, token=f"t{number}"))
    assert await store.swap("c", "t0", done)
    found = [await store.get(name) for name in names]
    assert [one and one.token for one in found] == ["t2", *(f"t{number}" for number in range(1, len(names)))]


async def test_a_store_can_be_used_again_after_it_was_closed(make_store: MakeStore, done: Record) -> None:
    """An app may start twice in a process."""
    store = make_store()
    assert await store.swap("c", None, done)
    await store.aclose()
    assert same(await store.get("c"), done)
