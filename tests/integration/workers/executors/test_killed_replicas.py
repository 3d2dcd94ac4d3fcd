"""Three processes of a module, killed and started again while they run calls: what was promised of a call holds all the same."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from support.hosts.replica_program import ReplicaProcess, replica_processes
from support.published_call import published
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from support.workers.replica_workers import ReplicaWorker, deliver, replica_workers
from toolfleet_registry.contracts import Effect, ToolResult

IN_FLIGHT = 24
LATE = 8
"""So many calls end before a worker knows that a process has gone, or has come."""
LONG = [pytest.mark.slow, pytest.mark.timeout(900)]
_ids = itertools.count()

Delivered = dict[str, ToolResult]


async def up(process: ReplicaProcess) -> None:
    await wait_until_answered(process.is_up, f"{process.id} is up", seconds=3 * PATIENCE_SECONDS)


async def more_end(results: Delivered) -> None:
    """As many calls as it takes for workers to be late."""
    enough = len(results) + LATE
    await wait_until(lambda: len(results) >= enough, "calls go on", seconds=3 * PATIENCE_SECONDS)


async def run_calls(
    workers: Sequence[ReplicaWorker], results: Delivered, count: int, effect: Effect, *, death_rate: float = 0.0
) -> None:
    """So many calls, some in flight at once; of every so many one's worker dies in the middle."""
    chance = random.Random(7)
    ids = iter([f"{effect}-{next(_ids)}" for _ in range(count)])

    async def client() -> None:
        for call_id in ids:
            call = published(f"owls.{effect}", call_id=call_id, effect=effect, arguments={}, limit_seconds=10)
            dies = chance.uniform(0, 0.06) if chance.random() < death_rate else None
            order = workers if chance.random() < 0.5 else [*reversed(workers)]
            results[call_id] = await deliver(order, call, dies=dies, pause=chance.uniform(0, 2))

    async with asyncio.timeout(60 + count * 0.3):
        await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))


async def beside(trouble: Callable[[], Awaitable[None]], calls: Awaitable[None]) -> None:
    """Have calls made while there is trouble again and again."""

    async def again() -> None:
        while True:
            await trouble()

    troubled = asyncio.ensure_future(again())
    try:
        await calls
    finally:
        troubled.cancel()
        (end,) = await asyncio.gather(troubled, return_exceptions=True)
        assert isinstance(end, asyncio.CancelledError), end


@pytest.mark.parametrize("count", [80, pytest.param(2000, marks=LONG)])
async def test_kills_in_the_middle_of_calls_break_no_promise(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """No `once` call is executed twice, and none that was executed ends as if it had not been; also where its worker dies, too.

    Each process that is killed is started again at the same port, and workers learn of neither at once.
    """
    with replica_processes(tmp_path) as processes:
        await asyncio.gather(*map(up, processes))
        async with replica_workers(redis_url, monkeypatch) as workers:
            turn, results = itertools.cycle(processes), Delivered()

            def tell() -> None:
                for worker in workers:
                    worker.serve([each.replica for each in processes])

            async def kill() -> None:
                process = next(turn)
                await more_end(results)
                await asyncio.to_thread(process.kill)
                process.start()
                await up(process)
                await more_end(results)  # until then workers take it for the one before
                tell()

            tell()
            for process in processes:
                await wait_until_answered(partial(process.denies, "nobody's"), "what it does not remember it denies")
            await beside(kill, run_calls(workers, results, count, "once", death_rate=0.1))
        done = Counter(processes[0].effects())

    assert len(results) == count
    assert [one for one, times in done.items() if times > 1] == []
    states = {call_id: "done" if one.success else one.effect_state for call_id, one in results.items()}
    assert {call_id for call_id, state in states.items() if state == "none" and done[call_id]} == set()
    assert {call_id for call_id, state in states.items() if state == "done" and not done[call_id]} == set()
    assert sum(one.success for one in results.values()) > count / 2


@pytest.mark.parametrize(
    ("effect", "count"),
    [pytest.param(effect, 1500, marks=LONG) for effect in ("once", "read")],
)
async def test_a_rolling_restart_fails_no_call(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effect: Effect, count: int
) -> None:
    """Each process leaves, ends what it is at, and is started again: under load, one after the other, for as long as there are calls."""
    with replica_processes(tmp_path) as processes:
        await asyncio.gather(*map(up, processes))
        async with replica_workers(redis_url, monkeypatch) as workers:
            turn, results = itertools.cycle(processes), Delivered()

            def tell(leaving: ReplicaProcess | None = None) -> None:
                for worker in workers:
                    worker.serve([each.replica for each in processes if each is not leaving])

            async def restart() -> None:
                process = next(turn)
                tell(process)
                await more_end(results)  # it serves on for as long as workers may not know
                process.stop()
                assert process.process is not None
                await asyncio.to_thread(process.process.wait, PATIENCE_SECONDS)
                process.start()
                await up(process)
                tell()

            tell()
            await beside(restart, run_calls(workers, results, count, effect))
        done = Counter(processes[0].effects())
        assert all(next(each.starts) > 2 for each in processes[:1]), "there was a restart"

    assert {call_id: one.error for call_id, one in results.items() if not one.success} == {}
    assert set(done) == set(results)
    assert effect != "once" or set(done.values()) == {1}
