"""Which versions the workers of a lane are of, as their notes say."""

import time

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.presence import LaneCapacity, LiveWorker, live_workers, mixed_versions, read_notes

FAST = Keys().slots("fast")


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
