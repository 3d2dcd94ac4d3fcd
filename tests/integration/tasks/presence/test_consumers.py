"""What workers note of the queues that they consume, and how many workers a queue has."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from redis.asyncio import Redis

from support.waiting import wait_until_equal
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls.dispatcher import READ
from toolfleet_tasks.presence import ConsumerNotes, workers_by_queue

KEYS = Keys()


@pytest.fixture
def leaving() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(leaving: ExitStack, settings: Settings, queues: list[str]) -> ConsumerNotes:
    notes = ConsumerNotes(settings, lambda: tuple(queues))
    notes._worker = f"here:{id(notes)}"
    notes.start()
    leaving.callback(notes.leave, restarts=False)
    return notes


async def counted(settings: Settings, expected: dict[str, int]) -> None:
    await wait_until_equal(lambda: workers_by_queue(settings), expected, "they are counted")


async def since(redis: Redis, queue: str) -> int:
    """For how many ms nobody has consumed it; -1 if somebody does."""
    return int(await redis.eval(READ.text, 2, KEYS.consumers, queue))


async def test_workers_are_counted_by_queue(redis_url: str, leaving: ExitStack) -> None:
    """Those that have left count no longer, nor does what only keeps their queues served."""
    settings = Settings(redis_url=redis_url, key_prefix="")
    one, two = started(leaving, settings, ["tools.a", "tools.b"]), started(leaving, settings, ["tools.a"])
    await counted(settings, {"tools.a": 2, "tools.b": 1})
    one.leave(restarts=True)
    await counted(settings, {"tools.a": 1})
    two.leave(restarts=False)
    await counted(settings, {})


async def test_a_queue_that_a_worker_takes_up_or_leaves_is_noted(
    redis: Redis, redis_url: str, leaving: ExitStack
) -> None:
    """Soon, while the worker lives; since when nobody has consumed the one that it left counts from then on."""
    queues = ["tools.a"]
    notes = started(leaving, settings := Settings(redis_url=redis_url), queues)
    await counted(settings, {"tools.a": 1})
    queues[:] = ["tools.b"]
    notes.wake()
    await counted(settings, {"tools.b": 1})
    assert 0 <= await since(redis, "tools.a") < 20_000
    assert await since(redis, "tools.b") == -1
    assert await since(redis, "tools.never") >= 3600_000


async def test_notes_come_back_with_a_redis_that_has_lost_them(
    redis: Redis, redis_url: str, leaving: ExitStack
) -> None:
    """The worker writes its queues again, too; and a worker that consumes thousands says so."""
    names = [f"tools.m{number}" for number in range(2500)]
    started(leaving, settings := Settings(redis_url=redis_url), names)
    await counted(settings, dict.fromkeys(names, 1))
    await redis.flushall()
    await counted(settings, dict.fromkeys(names, 1))


async def test_a_worker_without_redis_notes_nothing() -> None:
    """There is nobody who could ask."""
    notes = ConsumerNotes(Settings(broker_url="amqp://127.0.0.1:1//"), tuple)
    notes.start()
    notes.leave(restarts=True)
    assert await workers_by_queue(Settings(broker_url="amqp://127.0.0.1:1//")) == {}


async def test_a_worker_that_is_killed_counts_from_its_last_note(redis: Redis, redis_url: str) -> None:
    """Its note counts for two seconds, and then tells since when it has been silent."""
    seconds, _ = await redis.time()
    await redis.zadd(KEYS.consumers, {"dead:1 00": seconds - 30})
    await redis.expire(KEYS.consumers, 60)
    await redis.sadd(KEYS.consumed("0" * 16), "tools.a")
    await redis.expire(KEYS.consumed("0" * 16), 60)
    await redis.zadd(KEYS.consumers, {f"dead:2 {'0' * 16}": seconds - 9})
    assert 8_000 <= await since(redis, "tools.a") < 30_000
    assert await workers_by_queue(Settings(redis_url=redis_url)) == {}


async def test_a_defect_in_naming_the_queues_ends_no_notes(redis_url: str, leaving: ExitStack) -> None:
    """The worker would be taken for dead: it is logged, and the next look may find better."""
    found = iter([RuntimeError("dictionary changed size during iteration")])

    def consumed() -> tuple[str, ...]:
        for error in found:
            raise error
        return ("tools.a",)

    notes = ConsumerNotes(settings := Settings(redis_url=redis_url), consumed)
    notes.start()
    leaving.callback(notes.leave, restarts=False)
    await counted(settings, {"tools.a": 1})
