"""An agent that waits for wake-ups without HTTP: for hours, beside others that take long or die, and where none will come."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from redis.asyncio import Redis
from structlog.testing import capture_logs

from bed import clock
from bed.fleet import Bed, pass_time, until
from support.fleet import SIGNING_KEY
from support.workers.wakes import SECRET, complete, wake
from toolfleet import ToolFleet
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.presence import LaneCapacity
from toolfleet_tasks.wakeups import service
from toolfleet_tasks.wakeups.events import wake_body

DAY = 24 * 3600
DEAD_SECONDS = service._DEAD_AFTER_MS / 1000


async def listen(fleet: ToolFleet, heard: list[str], *, takes: float = 0) -> None:
    async for one in fleet.wakeups.completions("talk-1"):
        heard.append(one.wake_id)
        await asyncio.sleep(takes)


@asynccontextmanager
async def listening(fleet: ToolFleet) -> AsyncIterator[list[str]]:
    """What a reader has heard, while it listens."""
    heard = list[str]()
    reader = asyncio.create_task(listen(fleet, heard))
    yield heard
    reader.cancel()
    await asyncio.wait([reader])


async def test_what_a_dead_agent_was_given_is_given_to_another(bed: Bed, redis: Redis) -> None:
    """When nothing is heard of it any more."""
    await complete(redis, "job-1", seconds=DAY)
    dead, heard_there = bed.site("agent"), list[str]()

    async def read() -> None:
        await listen(await bed.agent(), heard_there, takes=DAY)

    dead.start(read())
    await until(lambda: heard_there == ["job-1"], "it has one")
    dead.kill()
    await complete(redis, "job-2", seconds=DAY)
    async with listening(await bed.agent()) as heard:
        await until(lambda: heard, "it reads")
        await asyncio.sleep(DEAD_SECONDS / 2)
        assert heard == ["job-2"]
        await until(lambda: heard == ["job-2", "job-1"], "another reader has it", step=1)


async def test_who_takes_long_is_not_taken_for_dead(bed: Bed, redis: Redis) -> None:
    """A turn of an agent takes minutes: nobody else is given its news as long as it lives."""
    await complete(redis, "job-1", seconds=DAY)
    slow, rival = await bed.agent(), await bed.agent()
    async with listening(rival) as heard, aclosing(slow.wakeups.completions("talk-1")) as news:
        assert heard == []
        assert (await anext(news)).wake_id == "job-1"
        await asyncio.sleep(5 * DEAD_SECONDS)
        assert heard == []
        await news.aclose()
        left_at = clock.monotonic()
        await until(lambda: heard == ["job-1"], "what was left is given to the rival")
        assert clock.monotonic() - left_at < DEAD_SECONDS / 2


async def test_a_waiting_reader_costs_next_to_nothing(bed: Bed, redis: Redis) -> None:
    """It sleeps until something comes."""
    fleet = await bed.agent()
    readers = [asyncio.create_task(listen(fleet, [])) for _ in range(5)]
    await until(lambda: bed.redis.client().info("clients")["blocked_clients"] == 5, "they listen")
    before = (await redis.info("stats"))["total_commands_processed"]
    await pass_time(60)
    after = (await redis.info("stats"))["total_commands_processed"]
    assert not any(each.done() for each in readers)
    for each in readers:
        each.cancel()
    await asyncio.wait(readers)

    assert after - before < 50 * 60


async def test_a_key_that_is_no_stream_is_waited_out(bed: Bed, redis: Redis) -> None:
    """Whoever has written it: once it is gone, the reader goes on."""
    of_all = Keys().completions("talk-1")
    await redis.set(of_all, "an owl", ex=DAY)
    async with listening(await bed.agent()) as heard:
        with capture_logs() as logs:
            await until(
                lambda: [line["event"] for line in logs].count("completions_not_read") > 1, "it has tried", step=1
            )
        await redis.delete(of_all)
        await complete(redis, "job-1")
        await until(lambda: heard == ["job-1"], "it has it")


async def test_readers_are_told_that_workers_wake_a_core(bed: Bed, redis: Redis) -> None:
    """Once, in the log, as soon as there is such a worker: it has what they wait for. What comes all the same is read."""
    bed.given["signing_key"] = SIGNING_KEY
    await LaneCapacity(bed.settings, count=4).note()
    fleet = await bed.agent()  # which logs, if it is the first of its process, that this Redis keeps no file
    with capture_logs() as logs:
        async with listening(fleet) as heard:
            await asyncio.sleep(300)
            assert logs == []
            waking = LaneCapacity(bed.with_settings(core_url="http://core:1", core_secret=SECRET), count=4)
            await waking.note()
            await until(lambda: logs, "it is said", step=1)
            for _ in range(10):
                await waking.note()
                await asyncio.sleep(10)
            news = Seal(SIGNING_KEY, purpose="job").sign(wake_body(wake("job-1")))
            await complete(redis, "job-1", body=news)
            await until(lambda: heard == ["job-1"], "it is read")

    assert [(line["event"], line["workers"]) for line in logs] == [("completions_go_to_core", [this_process().name])]
