"""What Redis keeps until a time, when its clock is set back by ten minutes: nobody waits for those."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.clocks import WallClock, redis_with_a_clock
from support.modules.raw_module import answering, http, raw_module
from support.waiting import wait_until_answered
from support.workers.wakes import delivering, never, put, scores
from toolfleet import Settings
from toolfleet.webhooks import RedisSeen
from toolfleet_registry.catalog.manifest_reader import BEGIN, END
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.fleet_clock import SlewedClock
from toolfleet_tasks.clock import Timekeeper
from toolfleet_tasks.control.startup_checks import Presence
from toolfleet_tasks.presence import live_workers, note_of
from toolfleet_tasks.scripts import script
from toolfleet_tasks.wakeups.outbox import WakeupOutbox
from toolfleet_tasks.webhooks.dedup import WakeMemory

BACK = -600.0
SHORT_MS = 300


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[tuple[str, WallClock]]:
    with redis_with_a_clock(tmp_path) as (url, clock):
        yield url, clock


async def set_back(url: str, clock: WallClock) -> None:
    """As seen by a fleet: a worker that has known the time for a while notices it."""
    own = SlewedClock(monotonic=fleet_clock.suspend_aware, wall=time.time, young_seconds=-1000)
    keeper = Timekeeper(Settings(redis_url=url), worker="w", clock=own)
    async with async_client(url) as redis:
        await keeper.read(redis)
        clock.set_ahead(BACK)
        await keeper.read(redis)


async def test_news_that_wait_come_as_soon_as_ever(stepped: tuple[str, WallClock]) -> None:
    """Those that a core has refused, and those of a worker that died while it told them; and new ones at once."""
    url, clock = stepped
    async with async_client(url) as redis:
        await put(redis, "job-1")
        async with (
            raw_module(answering(http(b"no", "503 Later", "Retry-After: 0"))) as core,
            delivering(url, core.url) as wakes,
        ):
            assert await wakes.deliver_due(publish=never, seconds=5) == 0
        await put(redis, "job-2")
        async with delivering(url, None) as dies:
            assert [wake.wake_id for wake in await dies._claim(replace(dies._core, seconds=-9.7), 1, seconds=5)] == [
                "job-2"
            ]
        await set_back(url, clock)
        await put(redis, "job-3")
        async with raw_module(answering(http(b"", "202 Taken"))) as core, delivering(url, core.url) as wakes:
            await deliver_all(wakes, redis)

    assert len(core.requests) == 3


async def deliver_all(wakes: WakeupOutbox, redis: Redis) -> None:
    """Deliver what is due, until nothing waits."""

    async def is_over() -> bool:
        await wakes.deliver_due(publish=never, seconds=5)
        return not await scores(redis, Keys().wakes_due)

    await wait_until_answered(is_over, "all wakes are delivered")


async def test_news_that_were_put_off_by_a_wrong_time_come_when_they_were_to(stepped: tuple[str, WallClock]) -> None:
    """Of a worker that died, by a clock that was set forward and right again; and new ones of that moment."""
    url, clock = stepped
    clock.set_ahead(-BACK)  # nobody knows yet
    async with async_client(url) as redis:
        await put(redis, "job-1")
        async with delivering(url, None) as dies:
            await dies._claim(replace(dies._core, seconds=-9.7), 1, seconds=5)
        await put(redis, "job-2", since=BACK)
        clock.set_ahead(0)
        async with raw_module(answering(http(b"", "202 Taken"))) as core, delivering(url, core.url) as wakes:
            await deliver_all(wakes, redis)

    assert len(core.requests) == 2


async def test_a_cores_claim_ends_as_soon_as_ever(stepped: tuple[str, WallClock]) -> None:
    """A process that died with it keeps the others waiting for its lease, and no longer."""
    url, clock = stepped
    seen = RedisSeen(url)
    memory = WakeMemory(seen)
    seconds = SHORT_MS / 1000
    assert (await memory.claim("job-1", "a", seconds=seconds)).state == "ours"
    clock.set_ahead(BACK)
    standing = await memory.claim("job-1", "b", seconds=seconds)
    assert standing.state == "busy"
    assert standing.rest_seconds <= seconds

    async def is_free() -> bool:
        return (await memory.claim("job-1", "b", seconds=seconds)).state == "ours"

    await wait_until_answered(is_free, "the claim ends")
    await seen.aclose()


async def test_a_dead_workers_note_does_not_count_for_longer(stepped: tuple[str, WallClock]) -> None:
    """Neither for its slots nor for its lease, once anybody who lives has said so again."""
    url, clock = stepped
    settings = Settings(redis_url=url)
    key, note = settings.keys.slots("fast"), script("presence/note_slots")
    async with async_client(url) as redis:
        await redis.eval(note.text, *note.parameters_of([key], note=note_of(8, "dead:1"), seconds=20))
        await Presence(settings).check_in()
        clock.set_ahead(BACK)
        await redis.eval(note.text, *note.parameters_of([key], note=note_of(8, "alive:1"), seconds=20))
        await Presence(settings.model_copy(update={"visibility_timeout": 7200})).check_in()

    assert [worker.name for worker in await live_workers(settings, "fast")] == ["alive:1"]


async def test_a_module_is_asked_as_soon_as_ever(stepped: tuple[str, WallClock]) -> None:
    """A pause after a manifest that could not be had lasts as long as it would have, at most."""
    url, clock = stepped
    named: dict[str, Any] = {"fetch": Keys().manifest_fetch("owls"), "longest_ms": 30_000, "forget_ms": 600_000}
    begin = BEGIN.command(**named, request_ms=7000)
    async with async_client(url) as redis:
        assert await redis.execute_command(*begin) == 0
        end = END.command(**named, in_vain="1", shortest_ms=20_000, fresh_ms=5000)
        assert await redis.execute_command(*end) == 20_000
        rest: Any = await redis.execute_command(*begin)
        assert rest > 0
        clock.set_ahead(BACK)

        assert await redis.execute_command(*begin) == 0
