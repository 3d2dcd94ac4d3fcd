"""Plain functions as local tools, in real workers: whatever they do, each call has one honest end, and the others go on."""

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.fleet import TestBed, local_tools_known, own_bed
from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_tasks.calls.handle import CallHandle

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")
ENV = {"PYTHONPATH": str(Path(__file__).parents[2])}  # where workers find the functions
THREADS = 2
# Workers have two threads, and are taken for lost after two seconds.
MORE: dict[str, object] = {
    "visibility_timeout": 2,
    "local_tools": "support.local_tools.plain_tools:tools",
    "local_threads": THREADS,
}


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """A fleet with a worker."""
    with own_bed(owls, tmp_path_factory.mktemp("bed"), **MORE) as bed, bed.worker(env=ENV):
        yield bed


@pytest.fixture
async def fleet(bed: TestBed) -> AsyncIterator[ToolFleet]:
    async with opened(bed) as fleet:
        yield fleet


@asynccontextmanager
async def opened(bed: TestBed) -> AsyncGenerator[ToolFleet]:
    async with ToolFleet(settings=bed.settings) as fleet:
        await local_tools_known(fleet)
        yield fleet


@pytest.fixture
def mortal(owls: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    """A fleet for a worker that ends."""
    with own_bed(owls, tmp_path, **MORE) as bed:
        yield bed


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Path]:
    """What functions write; at the end, those that hold a thread let it go."""
    yield (written := tmp_path / "journal")
    go(written)


def go(journal: Path) -> None:
    Path(f"{journal}.go").touch()


def words(journal: Path) -> list[str]:
    return journal.read_text().split() if journal.exists() else []


async def submit(fleet: ToolFleet, name: str, journal: Path, *, timeout: float = 60) -> CallHandle:
    return await fleet.submit(ToolCall(tool_name=name, arguments={"journal": str(journal)}), OWNER, timeout=timeout)


async def call(fleet: ToolFleet, name: str, *, timeout: float = 30, **arguments: Any) -> ToolResult:
    return await fleet.call(ToolCall(tool_name=name, arguments=arguments), OWNER, timeout=timeout)


async def test_a_worker_that_is_killed_leaves_an_honest_end(mortal: TestBed, journal: Path) -> None:
    """What changes nothing is run again by another one; of what may have changed something nobody knows."""
    with mortal.worker(env=ENV) as worker:
        async with opened(mortal) as fleet:
            unknown, reading = [await submit(fleet, name, journal) for name in ("local.hold", "local.hold_reading")]
            await wait_until(lambda: words(journal) == ["began"] * 2, "both run")
            worker.send_signal(signal.SIGKILL)
            go(journal)
            with mortal.worker(env=ENV):
                first, second = await unknown.result(3 * PATIENCE_SECONDS), await reading.result(3 * PATIENCE_SECONDS)

    assert (first.error_code, first.effect_state) == ("outcome_unknown", "unknown")
    assert (second.success, second.result) == (True, "held")
    assert words(journal) == ["began"] * 3 + ["ended"]


async def test_a_deadline_ends_a_call_whose_function_goes_on(mortal: TestBed, journal: Path) -> None:
    """The worker's other calls are not held up, it ends though the thread is taken, and nothing of the call comes twice."""
    with mortal.worker(env=ENV) as worker:
        async with opened(mortal) as fleet:
            late = await (await submit(fleet, "local.hold", journal, timeout=4)).result(2 * PATIENCE_SECONDS)
            assert (late.success, late.effect_state, late.retryable) == (False, "unknown", False)
            assert late.error_code in {"timed_out", "outcome_unknown"}
            assert (await call(fleet, "local.quick")).result == "here"
            assert words(journal) == ["began"]

            await wait_until(lambda: "local_tool_left_behind" in worker.said(), "it is left behind")
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait) == 0


async def test_more_calls_than_threads_wait_within_their_time(fleet: ToolFleet, journal: Path) -> None:
    """Who gets none in time has done nothing, and may try again."""
    running = [await submit(fleet, "local.hold", journal) for _ in range(THREADS)]
    await wait_until(lambda: words(journal) == ["began"] * THREADS, "all threads are taken")
    late = await submit(fleet, "local.hold", journal, timeout=4)
    waiting = [await submit(fleet, "local.hold", journal) for _ in range(THREADS)]
    result = await late.result(2 * PATIENCE_SECONDS)
    assert (result.error_code, result.effect_state, result.retryable) == ("busy", "none", True)
    assert result.audit.attempts == 1, "it was not tried again with no time to run"
    assert (await call(fleet, "local.quick")).success

    go(journal)
    assert [(await each.result(2 * PATIENCE_SECONDS)).result for each in running + waiting] == ["held"] * 2 * THREADS
    assert words(journal).count("began") == 2 * THREADS
