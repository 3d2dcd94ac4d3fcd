"""A process goes by the clock of its Redis; when that one is set, the fleet goes on as before, newcomers too."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.clocks import WallClock, redis_with_a_clock
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import async_client, connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.fleet_clock import SlewedClock
from toolfleet_tasks.clock import _CONTRADICTED_SECONDS, Timekeeper, is_too_far
from toolfleet_tasks.redis_connection import PipelinedConnection


@dataclass
class Process:
    """Stands for one with a fleet clock of its own. `stood_still`: for how many seconds its monotonic clock did, too."""

    url: str
    worker: str = ""
    wall_ahead: float = 0.0
    young_seconds: float = -1000.0
    stood_still: float = 0.0
    timekeeper: Timekeeper = field(init=False)

    def __post_init__(self) -> None:
        clock = SlewedClock(
            monotonic=lambda: fleet_clock.suspend_aware() - self.stood_still,
            wall=lambda: time.time() + self.wall_ahead,
            young_seconds=self.young_seconds,
        )
        self.timekeeper = Timekeeper(Settings(redis_url=self.url), worker=self.worker, clock=clock)

    @property
    def lead(self) -> float:
        """Of its fleet clock over the machine's."""
        return self.timekeeper.clock.now() - time.time()

    async def read(self) -> None:
        async with async_client(self.url) as redis:
            await self.timekeeper.read(redis)


async def at_work(url: str) -> Process:
    """A worker that has known the time for a while, and has said so."""
    process = Process(url, worker="a")
    await process.read()
    await process.read()
    return process


@asynccontextmanager
async def listening(redis: Redis) -> AsyncGenerator[None]:
    """As a worker does that lives."""
    async with redis.pubsub() as channel:
        await channel.subscribe(Keys().holder("a"))
        assert (await channel.get_message(timeout=PATIENCE_SECONDS)) is not None
        yield


@pytest.fixture
async def stepped(tmp_path: Path) -> AsyncIterator[tuple[str, WallClock]]:
    with redis_with_a_clock(tmp_path) as (url, clock):
        yield url, clock


async def test_a_process_goes_by_the_clock_of_its_redis(redis_url: str) -> None:
    """However far its own machine is off, which it says once a minute."""
    off, right = Process(redis_url, wall_ahead=-30), Process(redis_url, wall_ahead=0.5)
    with capture_logs() as logs:
        for process in (off, right):
            await process.read()
            await process.read()

    assert off.lead == pytest.approx(0, abs=0.5)
    (line,) = logs
    assert (line["event"], line["seconds"]) == ("own_clock_off", pytest.approx(-30, abs=1))


@pytest.mark.parametrize("seconds", [90, -600])
async def test_the_fleet_goes_on_when_redis_is_set(stepped: tuple[str, WallClock], seconds: float) -> None:
    """Whoever sees it first writes it down; all others, and who starts after it, show the same time as before."""
    url, clock = stepped
    agent, workers = Process(url), [Process(url, worker="a"), Process(url, worker="b")]
    for process in (agent, *workers):
        await process.read()
    clock.set_ahead(seconds)
    with capture_logs() as logs:
        for process in (*workers, agent):
            await process.read()
    newcomer = Process(url)
    await newcomer.read()

    written = [line["event"] for line in logs if line["doubt"] <= 0.5]  # seconds: a busy machine's word does not count
    assert written == ["redis_clock_stepped"]
    for process in (agent, *workers, newcomer):
        assert process.lead == pytest.approx(0, abs=0.9)


async def test_the_fleet_goes_on_when_redis_is_set_and_right_again(stepped: tuple[str, WallClock]) -> None:
    """Whether an agent asks before a worker does, after it, or for the first time: a time that no worker has shown is not theirs."""
    url, clock = stepped
    worker, agent, idle = await at_work(url), Process(url), Process(url)
    for process in (agent, idle):
        await process.read()
    clock.set_ahead(-600)
    await worker.read()
    await worker.read()
    clock.set_ahead(0)
    newcomer = Process(url, young_seconds=1000)
    await newcomer.read()
    assert newcomer.lead > 590  # a hundredth of what the clock seems to have gone on is made good
    for process in (agent, newcomer, worker, idle, agent):
        await process.read()

    assert [each.lead for each in (worker, agent, idle, newcomer)] == [pytest.approx(0, abs=0.9)] * 4


async def test_who_has_just_started_learns_that_redis_had_been_set(stepped: tuple[str, WallClock]) -> None:
    """It takes the wrong time for the right one until somebody who knows better has looked."""
    url, clock = stepped
    old, young = Process(url, worker="a"), Process(url, worker="b", young_seconds=1000)
    await old.read()
    clock.set_ahead(90)
    await young.read()
    assert young.lead == pytest.approx(90, abs=0.9)
    await young.read()
    await old.read()
    await young.read()

    assert [old.lead, young.lead] == [pytest.approx(0, abs=0.9)] * 2


@pytest.mark.parametrize("seconds", [90, -600])
async def test_a_worker_that_starts_waits_for_those_that_know(stepped: tuple[str, WallClock], seconds: float) -> None:
    """Between a step of Redis's clock and the first look of a worker that lives it believes nobody, and then that one."""
    url, clock = stepped
    old, young = await at_work(url), Process(url, young_seconds=1000)
    clock.set_ahead(seconds)
    async with async_client(url) as redis, listening(redis):
        begun = asyncio.create_task(young.timekeeper.begin(redis, runs_calls=True))
        await wait_until(lambda: young.timekeeper.clock.is_set, "it has asked")
        assert not begun.done()
        await old.read()
        await begun

    assert [old.lead, young.lead] == [pytest.approx(0, abs=0.9)] * 2
    assert not young.timekeeper.clock.is_young


async def test_a_time_that_a_worker_confirms_is_believed_at_once(stepped: tuple[str, WallClock]) -> None:
    """So a step a moment later is one for whoever has just started as well."""
    url, clock = stepped
    await at_work(url)
    new = Process(url, worker="b", young_seconds=1000)
    await new.read()
    clock.set_ahead(90)
    await new.read()

    assert new.lead == pytest.approx(0, abs=0.9)


async def test_nobody_waits_for_workers_that_are_gone(stepped: tuple[str, WallClock]) -> None:
    """What they have shown a minute ago contradicts nothing."""
    url, clock = stepped
    await at_work(url)
    clock.set_ahead(60)
    first = Process(url, young_seconds=1000)
    async with async_client(url) as redis:
        async with asyncio.timeout(_CONTRADICTED_SECONDS):
            await first.timekeeper.begin(redis, runs_calls=True)

    assert first.lead == pytest.approx(60, abs=0.9)


@pytest.mark.parametrize(("seconds", "waits"), [(90, False), (-600, True)])
async def test_an_agent_waits_only_where_its_calls_would_be_late(
    stepped: tuple[str, WallClock], monkeypatch: pytest.MonkeyPatch, seconds: float, *, waits: bool
) -> None:
    """With a clock that is behind, all that it published would have expired."""
    monkeypatch.setattr("toolfleet_tasks.clock._CONTRADICTED_SECONDS", 3600.0)
    url, clock = stepped
    old, agent = await at_work(url), Process(url, young_seconds=1000)
    clock.set_ahead(seconds)
    async with async_client(url) as redis, listening(redis):
        before = await readings(redis)

        async def has_asked_again() -> bool:
            return await readings(redis) > before + 1

        begun = asyncio.create_task(agent.timekeeper.begin(redis))
        if waits:
            await wait_until_answered(has_asked_again, "its first reading was not enough")
            assert not begun.done()
            await old.read()
        await asyncio.wait_for(begun, PATIENCE_SECONDS)


async def readings(redis: Redis) -> int:
    """How often this Redis was asked for the time."""
    return int((await redis.info("commandstats"))["cmdstat_eval"]["calls"])


async def test_a_worker_that_stood_still_does_not_hold_up_the_fleet(redis_url: str) -> None:
    """With its monotonic clock, as a machine that was paused from outside: others have gone on."""
    paused, other, agent = Process(redis_url, worker="a"), Process(redis_url, worker="b"), Process(redis_url)
    for process in (paused, other, agent):
        await process.read()
    paused.stood_still = 30
    with capture_logs() as logs:
        await other.read()
        await paused.read()
        await agent.read()

    assert [line["event"] for line in logs] == ["fleet_clock_set"]
    for process in (paused, other, agent):
        assert process.lead == pytest.approx(0, abs=0.9)


async def test_whoever_is_alone_and_stood_still_is_set_right_by_the_next_one(redis_url: str) -> None:
    """It takes Redis for the one that jumped, until a clock that shows more is seen; nobody argues for long."""
    paused, agent = Process(redis_url, worker="a"), Process(redis_url)
    for process in (paused, agent):
        await process.read()
    paused.stood_still = 30
    for _ in range(2):
        await paused.read()
        await agent.read()
    await paused.read()
    await agent.read()

    assert [paused.lead, agent.lead] == [pytest.approx(0, abs=0.9)] * 2


async def test_a_line_asks_for_the_time_now_and_then(redis_url: str, redis: Redis) -> None:
    """Nobody waits for the answer."""
    process = Process(redis_url, wall_ahead=-30)
    line = PipelinedConnection(connection_factory(redis_url), name="test")
    line.start()
    await line.connected()
    await redis.config_resetstat()
    for _ in range(3):
        process.timekeeper.read_over(line)
    await wait_until(lambda: abs(process.lead) < 1, "the clock is set")
    stats = await redis.info("commandstats")
    await line.aclose()

    assert stats["cmdstat_eval"]["calls"] == 1


async def test_one_process_goes_by_one_clock(stepped: tuple[str, WallClock], redis_url: str) -> None:
    """Of two fleets in it the first one sets it; that the other one's Redis differs is said."""
    url, clock = stepped
    first, second = Process(redis_url), Process(url)
    second.timekeeper.clock = first.timekeeper.clock
    clock.set_ahead(20)
    with capture_logs() as logs:
        await first.read()
        await second.read()

    assert first.lead == pytest.approx(0, abs=0.5)
    assert [(line["event"], line["seconds"]) for line in logs] == [("redis_clocks_differ", pytest.approx(20, abs=1))]


async def test_a_redis_that_takes_no_writes_still_tells_the_time(redis_url: str, redis: Redis) -> None:
    """What workers note there is for the day when its clock is set."""
    process = Process(redis_url, worker="a", wall_ahead=-30)
    await redis.config_set("maxmemory", 1)
    try:
        await process.read()
        await process.read()
    finally:
        await redis.config_set("maxmemory", 0)

    assert process.lead == pytest.approx(0, abs=0.5)


async def test_workers_say_how_far_their_machines_are_off(redis_url: str) -> None:
    """So that each can tell whether it is alone with that."""
    ones = [Process(redis_url, worker=f"w {number}", wall_ahead=ahead) for number, ahead in enumerate((0, 400, 400))]
    for _ in range(3):
        for one in ones:
            await one.read()

    assert ones[0].timekeeper.others == [pytest.approx(400, abs=2)] * 2
    assert sorted(ones[2].timekeeper.others) == [pytest.approx(0, abs=2), pytest.approx(400, abs=2)]


@pytest.mark.parametrize(
    ("lead", "others", "verdict"),
    [
        (299, [], False),
        (301, [], True),
        (-301, [0.0, 0.0], True),
        (-301, [0.0, -301.0, -300.0], False),  # it is Redis
        (301, [301.0, 0.0], True),  # two that disagree say nothing
        (301, [-301.0, -301.0], True),
    ],
)
def test_a_machine_is_wrong_unless_most_others_are_as_far_off(
    lead: float, others: list[float], *, verdict: bool
) -> None:
    """Then it is Redis's clock that is wrong, and nobody stops."""
    assert is_too_far(lead, others, limit=300) is verdict
