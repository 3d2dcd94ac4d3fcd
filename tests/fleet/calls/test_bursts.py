"""More calls in one tick than can be published in it, and connections that are cut all the time: held back, never lost."""

import asyncio
import contextlib
import resource
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

import pytest

from support.fleet import TestBed, own_bed
from support.modules.module_process import ModuleProcess, module_process
from support.pace import at_rate
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.redis.servers import async_client

CALLERS = [Caller(user_id=f"u{number}", permission="owner", allowed_modules="*") for number in range(50)]
BURSTS = [1_000, pytest.param(20_000, marks=[pytest.mark.load, pytest.mark.timeout(300)])]
# Cuts a second: calls that are made meanwhile.
CUTS = [(2, 120), pytest.param(2, 900, marks=[pytest.mark.load, pytest.mark.timeout(120)])]
CALLS_A_SECOND = 60
MEGABYTES = 400  # that 20,000 calls may cost their agent while they wait


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleProcess]:
    with module_process() as module:
        yield module


@pytest.fixture(scope="module")
def bed(module: ModuleProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """A fleet of the fast transport with a worker, for all tests that need one."""
    with own_bed(module.server, tmp_path_factory.mktemp("fleet")) as bed, bed.worker():
        yield bed


def echo(number: int, method: str = "echo") -> ToolCall:
    return ToolCall(tool_name=f"owls.{method}", arguments={"n": number})


async def submitted(fleet: ToolFleet, number: int) -> ToolResult:
    handle = await fleet.submit(echo(number), CALLERS[number % len(CALLERS)], timeout=120)
    return await handle.result()


async def called(fleet: ToolFleet, number: int) -> ToolResult:
    return await fleet.call(echo(number), CALLERS[0], timeout=120)


Make = Callable[[ToolFleet, int], Awaitable[ToolResult]]


@pytest.mark.parametrize("count", BURSTS)
@pytest.mark.parametrize("make", [submitted, called])
async def test_a_burst_is_held_back_and_not_lost(bed: TestBed, module: ModuleProcess, make: Make, count: int) -> None:
    """Thousands in one tick of one agent: each is done once, or told `busy` and surely not executed."""
    before, executed = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(module.executed("echo"))
    async with ToolFleet(settings=bed.settings) as fleet:
        results = await asyncio.gather(*(make(fleet, number) for number in range(count)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    ends = Counter((result.error_code, result.effect_state) for result in results)
    done = [result.audit.call_id for result in results if result.success and result.audit]

    assert set(ends) <= {(None, "done"), ("busy", "none")}, ends
    assert sorted(module.executed("echo")[executed:]) == sorted(done)
    assert ends[None, "done"] >= count / 2
    assert grown < MEGABYTES


@pytest.mark.parametrize("count", [500, pytest.param(6_000, marks=[pytest.mark.load, pytest.mark.timeout(200)])])
async def test_a_burst_that_nobody_serves_surely_did_nothing(bed: TestBed, redis_url: str, count: int) -> None:
    """Without a worker thousands of deadlines pass at once: the ledger is asked about each, and none ends as unknown."""
    async with ToolFleet(settings=bed.settings.model_copy(update={"redis_url": redis_url})) as fleet:
        await fleet.modules.refresh()
        until = asyncio.get_running_loop().time() + 1 + count / 200

        async def one(number: int) -> ToolResult:
            left = until - asyncio.get_running_loop().time()
            return await (await fleet.submit(echo(number), CALLERS[number % len(CALLERS)], timeout=left)).result()

        results = await asyncio.gather(*(one(number) for number in range(count)))

    assert Counter((result.error_code, result.effect_state) for result in results) == {("expired", "none"): count}


@contextlib.asynccontextmanager
async def cut(url: str, *, a_second: float) -> AsyncGenerator[list[int]]:
    """Every connection to Redis is cut so often, that of whoever publishes and that of whoever listens; yields the counts."""
    counts: list[int] = []

    async def keep_cutting() -> None:
        async with async_client(url) as redis:  # redis-py's own may miss that it is cancelled
            async for _ in at_rate(a_second):
                kinds = [await redis.client_kill_filter(_type=kind, skipme=True) for kind in ("normal", "pubsub")]
                counts.append(sum(kinds))

    cutting = asyncio.create_task(keep_cutting())
    try:
        yield counts
    finally:
        cutting.cancel()
        await asyncio.wait([cutting])


@pytest.mark.parametrize(("a_second", "count"), CUTS)
async def test_cut_connections_refuse_hardly_a_call(
    bed: TestBed, module: ModuleProcess, a_second: float, count: int
) -> None:
    """What was surely not published is published again, and what may have been, too: in time, and each call runs once."""
    nap = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0.01})

    calls = list[asyncio.Task[ToolResult]]()
    async with ToolFleet(settings=bed.settings) as fleet, cut(bed.redis_url, a_second=a_second) as cuts:
        async for number in at_rate(CALLS_A_SECOND, count):
            calls.append(asyncio.create_task(fleet.call(nap, CALLERS[number % len(CALLERS)], timeout=20)))
        results = await asyncio.gather(*calls)
    executed = Counter(module.executed("nap_once"))
    ends = Counter(result.error_code for result in results)
    refused = [result for result in results if result.effect_state == "none"]

    assert sum(cuts) >= 2 * len(cuts) > 2
    assert len(refused) < count / 100, ends
    assert set(executed.values()) == {1}
    assert all(result.audit and not executed[result.audit.call_id] for result in refused)
    assert ends[None] > count * 0.95, ends
