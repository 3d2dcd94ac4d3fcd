"""A fleet that gets more calls than it can take: who is told so, and who is served nevertheless."""

import asyncio
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer, holding, serve
from support.owls import make_module
from support.programs.closed_port import closed_port
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_sync
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_tasks.presence.consumers import workers_by_queue

ADA, BOB = (Caller(user_id=name, permission="owner", allowed_modules="*") for name in ("ada", "bob"))
NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 0.2})
ECHO = ToolCall(tool_name="owls.echo", arguments={"text": "hu"})
LONG_NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 30})


@pytest.fixture
def redis_here(tmp_path: Path) -> Iterator[str]:
    with redis_server(tmp_path / "redis") as url:
        yield url


@contextmanager
def overloaded(url: str, module: ModuleServer, folder: Path, **settings: object) -> Generator[TestBed]:
    """A bed of its own, for settings of its own."""
    wait_until_sync(lambda: not module.running, "what other tests have left has ended")
    module.forget()
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    yield TestBed(url, (module,), logs, settings)


async def test_a_full_queue_answers_at_once(redis_here: str, owls: ModuleServer, tmp_path: Path) -> None:
    """While the worker is busy, calls over the limit are `busy` within the publish; the others have their results."""
    settings = {"backlog_limit": 3, "worker_concurrency": 1, "calls_per_caller": 100}
    with overloaded(redis_here, owls, tmp_path, **settings) as bed, bed.worker(worker_concurrency=1):
        async with ToolFleet(settings=bed.settings) as fleet:
            with holding(owls, "nap"):
                first = await fleet.submit(NAP, ADA)
                await wait_until(lambda: owls.running, "the worker is busy")
                waiting = [await fleet.submit(NAP, ADA) for _ in range(6)]
                ends = [handle for handle in waiting if handle._ending.done()]
            results = await asyncio.wait_for(asyncio.gather(*(one.result() for one in [first, *waiting])), 30)

    # A worker takes some ahead of the one that runs.
    assert 1 <= len(ends) <= 3
    assert [result.error_code for result in results if not result.success] == ["busy"] * len(ends)


async def test_one_users_flood_starves_nobody(redis_here: str, owls: ModuleServer, tmp_path: Path) -> None:
    """With hundreds of calls of one user under way, another one's call waits for a few of them only."""
    with overloaded(redis_here, owls, tmp_path, worker_concurrency=5) as bed, bed.worker(worker_concurrency=5):
        async with ToolFleet(settings=bed.settings) as fleet, Redis.from_url(redis_here) as redis:
            flood = asyncio.create_task(fleet.call_many([NAP] * 300, ADA, timeout=60))
            await wait_until(lambda: len(owls.requests) >= 20, "the flood is under way")
            assert await redis.zcard(bed.settings.keys.caller_limit("fast", "ada")) <= 10
            before = len(owls.requests)
            assert (await fleet.call(ECHO, BOB, timeout=20)).success
            between = len(owls.requests) - before
            flood.cancel()
            await asyncio.wait([flood])

    assert between <= 30, "its share is ten calls, and as many may have got in while the other one was on its way"


async def test_the_flood_itself_is_served(redis_here: str, owls: ModuleServer, tmp_path: Path) -> None:
    """What waits for its turn has its result in the end, each once; and the worker's slots are used meanwhile."""
    naps = [ToolCall(tool_name="owls.nap", arguments={"seconds": 0.02, "n": number}) for number in range(300)]
    with overloaded(redis_here, owls, tmp_path, worker_concurrency=5) as bed, bed.worker(worker_concurrency=5):
        async with ToolFleet(settings=bed.settings) as fleet:
            results = await asyncio.wait_for(fleet.call_many(naps, ADA), 3 * PATIENCE_SECONDS)

    assert all(result.success for result in results)
    assert sorted(request["arguments"]["n"] for request in owls.requests) == list(range(300))
    assert owls.most_running == 5


async def test_a_dead_module_is_left_alone_and_found_again(redis_here: str, tmp_path: Path) -> None:
    """The breaker opens when no worker can connect; soon calls fail within the publish; when the module answers it closes."""
    module = make_module()
    with overloaded(redis_here, module, tmp_path, breaker_seconds=3) as bed, serve(module):
        async with ToolFleet(settings=bed.settings) as fleet:
            with bed.worker(module_services={"owls": f"http://127.0.0.1:{closed_port()}"}):
                refused = await refused_at_once(fleet)
            with bed.worker():
                give_up_at = time.monotonic() + 20
                while not (result := await fleet.call(ECHO, ADA, timeout=20)).success:
                    assert (result.error_code, result.effect_state) == ("module_unreachable", "none")
                    assert time.monotonic() < give_up_at
                    await asyncio.sleep(0.05)
                results = await fleet.call_many([ECHO] * 20, ADA)

    assert (refused.error_code, refused.effect_state, refused.retryable) == ("module_unreachable", "none", True)
    assert 2 <= (refused.retry_after_seconds or 0) <= 3
    assert all(result.success for result in results)


async def refused_at_once(fleet: ToolFleet) -> ToolResult:
    """The first call that gets into no queue; those before it wait for their module in vain."""
    give_up_at = time.monotonic() + 40
    while True:
        result = await fleet.call(ECHO, ADA, timeout=20)
        assert not result.success
        if (result.audit.attempts, result.audit.worker) == (0, None):
            return result
        assert time.monotonic() < give_up_at


@pytest.mark.parametrize("fast", [True, False])
async def test_a_modules_bound_holds_over_all_workers(
    redis_here: str, owls: ModuleServer, tmp_path: Path, fast: bool
) -> None:
    """By the module's own count: never more at once, and it is used up; another module's calls are not held up."""
    settings = {"module_concurrency": {"owls": 3}, "fast_transport": fast}
    with (
        serve(make_module("ravens")) as ravens,
        overloaded(redis_here, owls, tmp_path, **settings) as bed,
    ):
        bed.modules = (owls, ravens)
        with bed.worker(), bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet:
                with holding(owls, "nap"):
                    naps = asyncio.create_task(fleet.call_many([NAP] * 9, ADA, timeout=60))
                    await wait_until(lambda: owls.running == 3, "as many naps as may be are under way")
                    raven = await fleet.call(ToolCall(tool_name="ravens.echo"), ADA, timeout=20)
                    assert not naps.done()
                results = await asyncio.wait_for(naps, 3 * PATIENCE_SECONDS)

    assert raven.success
    assert all(result.success for result in results)
    assert (owls.most_running, len(owls.requests)) == (3, 9)


@pytest.mark.parametrize("fast", [True, False])
async def test_one_intention_is_one_call(redis_here: str, owls: ModuleServer, tmp_path: Path, fast: bool) -> None:
    """A repeat joins the running call, and after its end brings its result; the module has seen one request."""
    once = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0.5}, idempotency_key="conversation-1/call-7")
    other = once.model_copy(update={"arguments": {"seconds": 0.6}})
    with overloaded(redis_here, owls, tmp_path, fast_transport=fast) as bed, bed.worker():
        async with ToolFleet(settings=bed.settings) as fleet, ToolFleet(settings=bed.settings) as elsewhere:
            first = asyncio.create_task(fleet.call(once, ADA))
            await wait_until(lambda: owls.running, "it runs")
            repeats = await asyncio.gather(*(one.call(once, ADA, timeout=20) for one in (fleet, elsewhere, elsewhere)))
            conflict = await elsewhere.call(other, ADA)
            results = [await first, *repeats, await elsewhere.call(once, ADA)]
            mine = await fleet.call(once, BOB)

    assert {result.audit.call_id for result in results} == {results[0].audit.call_id}
    assert all(result.success for result in results)
    assert (conflict.error_code, conflict.effect_state) == ("conflict", "none")
    assert mine.audit.call_id != results[0].audit.call_id
    assert len(owls.requests) == 2


async def test_a_cancelled_crowd_leaves_nothing(redis_here: str, owls: ModuleServer, tmp_path: Path) -> None:
    """`call_many` takes back what runs, what is queued and what waits for its turn; its share is free again."""
    with overloaded(redis_here, owls, tmp_path, worker_concurrency=2) as bed, bed.worker(worker_concurrency=2):
        async with ToolFleet(settings=bed.settings) as fleet, Redis.from_url(redis_here) as redis:
            crowd = asyncio.create_task(fleet.call_many([LONG_NAP] * 20, ADA))
            await wait_until(lambda: owls.running == 2, "two of them run")
            crowd.cancel()
            await asyncio.wait([crowd])
            await wait_until(lambda: owls.running == 0, "they were interrupted")
            give_up_at = time.monotonic() + 20
            while await redis.exists(bed.settings.keys.caller_limit("fast", "ada")):
                assert time.monotonic() < give_up_at
                await asyncio.sleep(0.02)
            assert (await fleet.call(ECHO, ADA, timeout=20)).success

    assert len(owls.calls("nap")) == 2


async def served_by(bed: TestBed, expected: dict[str, int]) -> None:
    """So many workers say that they consume these queues, soon."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await workers_by_queue(bed.settings) != expected:  # noqa: ASYNC110 - nothing says when
            await asyncio.sleep(0.05)


async def test_a_module_whose_workers_are_gone_turns_calls_away(
    redis_here: str, owls: ModuleServer, tmp_path: Path
) -> None:
    """Soon after the last one was killed; what is in the queue is run by the next one, which has calls wait when it is told to end."""
    with overloaded(redis_here, owls, tmp_path, unserved_seconds=1) as bed:
        async with ToolFleet(settings=bed.settings) as fleet, Redis.from_url(redis_here) as redis:
            with bed.worker() as worker:
                await served_by(bed, {"tools.owls": 1, "toolfleet.control": 1})
                assert (await fleet.call(ECHO, ADA, timeout=20)).success
                worker.send_signal(signal.SIGKILL)
                worker.wait()
            await served_by(bed, {})
            refused = await fleet.call(ECHO, ADA, timeout=20)
            assert (refused.error_code, refused.effect_state) == ("busy", "none")
            assert "no worker serves the module 'owls' (lane fast)" in str(refused.error)
            waiting = await fleet.submit(ECHO, ADA, waits_for_worker=True)
            with bed.worker() as worker:
                assert (await waiting.result(PATIENCE_SECONDS)).success
                assert (await fleet.call(ECHO, ADA, timeout=20)).success
                worker.send_signal(signal.SIGTERM)
                worker.wait()
            await fleet.submit(ECHO, ADA)
            assert await redis.llen("tools.owls") == 1
