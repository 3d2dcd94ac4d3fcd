"""What workers find of the processes of modules, added up for whoever asks."""

import json

import pytest
from redis.asyncio import Redis

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.presence import Counts, ReplicaCount, ReplicaCounts, added_up, replica_counts

KEY = Keys().hosts.counts
FOUND: Counts = {"owls": {"a": (3, 1, 0.0), "b": (0, 2, 1.5)}}


class Worker:
    """One that finds `found`; the `name` is its host and process."""

    def __init__(self, redis_url: str, name: str, found: Counts) -> None:
        self.found = found
        self.notes = ReplicaCounts(Settings(redis_url=redis_url), lambda: self.found)
        self.notes._worker = name


async def test_what_workers_find_is_added_up(redis: Redis, redis_url: str) -> None:
    """Calls and failures; of ejections the longest."""
    for name in ("here:1", "here:2", "here:1"):
        await Worker(redis_url, name, FOUND).notes.note()

    assert await replica_counts(Settings(redis_url=redis_url)) == {
        "owls": {"a": ReplicaCount(6, 2, 0.0, 2), "b": ReplicaCount(0, 4, 1.5, 2)}
    }


async def test_where_no_module_has_several_processes_nothing_is_written(redis: Redis, redis_url: str) -> None:
    """Not even asked."""
    await Worker(redis_url, "here:1", {}).notes.note()

    assert await redis.exists(KEY) == 0
    assert await replica_counts(Settings(redis_url=redis_url)) == {}


async def test_what_is_there_no_more_is_forgotten(redis: Redis, redis_url: str) -> None:
    """The module has one process now, or none."""
    worker = Worker(redis_url, "here:1", FOUND)
    await worker.notes.note()
    worker.found = {}
    await worker.notes.note()

    assert await replica_counts(Settings(redis_url=redis_url)) == {}


@pytest.mark.parametrize("seconds", [-60, 60])
async def test_a_worker_that_is_silent_counts_no_more(redis: Redis, redis_url: str, seconds: int) -> None:
    """It has died; or Redis's clock was set back since, and it will say so again."""
    await Worker(redis_url, "here:1", FOUND).notes.note()
    now, _ = await redis.time()
    await redis.hset(KEY, "gone:1", f"{now + seconds} {json.dumps(FOUND)}")
    (counted,) = (await replica_counts(Settings(redis_url=redis_url))).values()
    await Worker(redis_url, "here:1", FOUND).notes.note()

    assert counted["a"].workers == 1
    assert await redis.hkeys(KEY) == ["here:1"]


def test_what_is_no_note_counts_for_nothing() -> None:
    """Whoever can write to Redis can write anything; a later version has more numbers."""
    broken = ["", "{", "7", "[1]", '{"owls": 7}', '{"owls": {"a": 7}}', '{"owls": {"a": [1, 2]}}']
    broken += ['{"owls": {"a": ["1", 2, 3]}}', '{"owls": {"a": [-1, 2, 3]}}', '{"owls": {"a": [null, 2, 3]}}']
    assert added_up(broken) == {}
    assert added_up([*broken, b'{"owls": {"a": [1, 2, 3, "more"]}}']) == {"owls": {"a": ReplicaCount(1, 2, 3, 1)}}


async def test_without_a_redis_nothing_is_known() -> None:
    """Nobody could say."""
    assert await replica_counts(Settings()) == {}
