"""Which versions the workers of a lane are of, as their notes say."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.waiting import wait_until
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.presence import (
    ApartReaders,
    LaneCapacity,
    LiveWorker,
    live_workers,
    mixed_versions,
    note_of,
    read_notes,
)
from toolfleet_tasks.redis_connection import PipelinedConnection

FAST, SLOW = Keys().slots("fast"), Keys().slots("slow")
OLDER, NEWER = "3 old:1", f"3 new:1 v{json_text.READS_APART + 1}"


@dataclass
class Readers:
    """An agent's knowledge of who reads what; `pending`: whether it waits for calls, `told`: how often it was told of older workers."""

    apart: ApartReaders
    pending: bool = False
    told: int = 0

    def is_known(self) -> bool:
        """Whether all are known to read such calls, without a question."""
        return self.apart.are_all

    async def are_all(self) -> bool:
        """Whether all read calls whose arguments stand apart, by an answer that has come since now."""
        self.apart.want()
        if self.apart._has_answered:
            self.apart._ask()
        await wait_until(lambda: self.apart._has_answered, "Redis has said who lives")
        return self.apart.are_all


@pytest.fixture
async def readers(redis: Redis, redis_url: str) -> AsyncIterator[Readers]:
    line = PipelinedConnection(connection_factory(redis_url), name="test")
    line.start()
    await line.connected()

    def older() -> None:
        found.told += 1

    apart = ApartReaders(line, Settings(redis_url=redis_url), is_awaited=lambda: found.pending, on_older=older)
    found = Readers(apart)
    yield found
    await line.aclose()
    apart._ask()
    await redis.delete(FAST, SLOW)


@pytest.mark.parametrize(
    ("note", "found"),
    [
        (b"7 here:1", (LiveWorker("here:1", 1),)),  # the first version says none
        (b"7 here:1 v3", (LiveWorker("here:1", 3),)),
        (b"7 here:1 v3 more", (LiveWorker("here:1", 3),)),  # as a later version may write
        (b"7 here:1 fast", (LiveWorker("here:1", 1),)),
        (b"\xff", ()),
    ],
)
def test_a_note_says_its_workers_version(note: bytes, found: tuple[LiveWorker, ...]) -> None:
    """Or none, and then it is of the first."""
    assert read_notes([note]) == found


async def test_the_live_workers_of_a_lane_are_found(redis: Redis, redis_url: str) -> None:
    """Also those of the first version; not those that have been silent for long."""
    settings = Settings(redis_url=redis_url, lane="fast")
    await LaneCapacity(settings, count=7).note()
    await redis.zadd(FAST, {"3 old:1": time.time(), "3 gone:1 v9": 1})

    found = {worker.name: worker.version for worker in await live_workers(settings, "fast")}

    assert found.pop("old:1") == 1
    assert list(found.values()) == [json_text.VERSION]
    assert "gone:1" not in found


def test_one_version_is_no_mixture() -> None:
    """Nothing is said of it; of several each is named, with its workers."""
    here, there, old = LiveWorker("here:1", 2), LiveWorker("there:1", 2), LiveWorker("old:1", 1)

    assert mixed_versions([here, there]) == ""
    assert mixed_versions([here, old, there]) == "version 1: old:1; version 2: here:1, there:1"


async def test_mixed_versions_are_logged_once(redis: Redis, redis_url: str) -> None:
    """When the first worker of another version comes, and when the last one has gone."""
    slots = LaneCapacity(Settings(redis_url=redis_url, lane="fast"), count=7)
    with capture_logs() as logs:
        await slots.note()
        await redis.zadd(FAST, {"3 old:1": time.time()})
        await slots.note()
        await slots.note()
        await redis.zrem(FAST, "3 old:1")
        await slots.note()

    said = [line["workers"] for line in logs if line["event"] == "workers_of_mixed_versions"]
    assert len(said) == 2
    assert "version 1: old:1" in said[0]
    assert said[1] == "no more"


@pytest.mark.parametrize(
    ("notes", "are_all"),
    [
        ({}, False),
        ({FAST: note_of(3, "here:1")}, True),
        ({FAST: NEWER, SLOW: note_of(3, "here:1")}, True),
        ({FAST: note_of(3, "here:1"), SLOW: OLDER}, False),
        ({FAST: OLDER}, False),
    ],
)
async def test_the_apart_form_is_for_workers_that_all_read_it(
    readers: Readers, redis: Redis, notes: dict[str, str], are_all: bool
) -> None:
    """Before Redis has answered, and without a worker, nobody is known to."""
    for key, note in notes.items():
        await redis.zadd(key, {note: time.time()})

    readers.apart.want()
    assert not readers.apart.are_all
    assert await readers.are_all() == are_all
    assert readers.told == 0


async def test_an_older_worker_that_comes_is_told_of_once(readers: Readers, redis: Redis) -> None:
    """Since then calls are published for it as well; those before are published again."""
    await redis.zadd(FAST, {note_of(3, "here:1"): time.time()})
    assert await readers.are_all()
    await redis.zadd(FAST, {OLDER: time.time()})

    assert not await readers.are_all()
    assert not await readers.are_all()
    assert readers.told == 1

    await redis.zrem(FAST, OLDER)
    assert await readers.are_all()


async def test_without_an_answer_nothing_is_known(readers: Readers, redis: Redis) -> None:
    """Nor once nothing was published for a while and no call is awaited: the next call asks anew."""
    await redis.zadd(FAST, {note_of(3, "here:1"): time.time()})
    assert await readers.are_all()
    readers.pending = True
    readers.apart._ask()
    assert readers.is_known()
    readers.apart._ask()  # the answer has not come within the second
    assert not readers.is_known()

    readers.pending = readers.apart.is_wanted = False
    readers.apart._ask()
    assert readers.apart._timer is None

    await redis.ping()  # an answer that comes now is not believed
    assert not readers.is_known()

    readers.pending = True
    readers.apart._ask()
    assert readers.apart._timer is not None
