"""Every call has exactly one audit line, whatever becomes of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer, holding, serve
from support.owls import make_module
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.redis.keys import Keys


@pytest.fixture
def owls() -> Iterator[ModuleServer]:
    """Their own: in the one that all tests share, calls of others may still run."""
    with serve(make_module()) as module:
        yield module


@pytest.fixture
def bed(owls: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    with own_bed(owls, tmp_path, log_format="json") as bed:
        yield bed


@pytest.fixture
async def fleet(bed: TestBed) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


async def audit(bed: TestBed) -> dict[str, dict[str, Any]]:
    """By call id; no call has two."""
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        entries: Any = await redis.xrange(Keys().audit)
    lines = [json.loads(entry["line"]) for _, entry in entries]
    found = {line["call_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def logged(text: str) -> list[dict[str, Any]]:
    """The audit lines in a worker's log."""
    return [json.loads(line) for line in text.splitlines() if '"tool_call_audited"' in line]


async def test_calls_that_a_worker_has_run(bed: TestBed, fleet: ToolFleet, owner: Caller) -> None:
    """Done, failed, retried and refused by their worker: what it says stands in the stream and in its log."""
    calls = {
        "echo": ("success", None, 1),
        "fail": ("unknown", "module_error", 1),
        "fail_once": ("unknown", "module_error", 1),
        "turn_away": ("failed", "busy", 2),
    }
    with bed.worker() as worker:
        results = {
            method: await fleet.call(ToolCall(tool_name=f"owls.{method}", arguments={"n": 1}), owner)
            for method in calls
        }
    lines = await audit(bed)

    for method, (outcome, code, attempts) in calls.items():
        seen = results[method].audit
        assert seen is not None
        line = lines[seen.call_id]
        assert (line["tool"], line["outcome"], line.get("error_code")) == (f"owls.{method}", outcome, code)
        assert (line["attempts"], line["user_id"], line["permission"]) == (attempts, "ada", "owner")
        assert line["decisions"]["published"] == "yes"
        assert line["decisions"]["permission"] == "allowed"
        assert (line["duration_ms"], line["queued_ms"], line["worker"]) == (
            seen.duration_ms,
            seen.queued_ms,
            seen.worker,
        )
    assert {entry["call_id"] for entry in logged(worker.said())} == set(lines)
    assert len(logged(worker.said())) == len(lines) == len(calls)


async def test_a_call_whose_agent_ends_it(bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """Taken back while it runs: the agent has won its end, and its worker, who is late, adds nothing."""
    with bed.worker() as worker:
        with holding(owls, "nap"):
            handle = await fleet.submit(ToolCall(tool_name="owls.nap", arguments={"seconds": 0}), owner)
            await wait_until(lambda: owls.running, "the module has the call")
            await handle.cancel()
            result = await handle.result(PATIENCE_SECONDS)
        await wait_until(lambda: not owls.running, "the module is done")
    (line,) = (await audit(bed)).values()

    assert result.error_code == line["error_code"] == "cancelled"
    assert (line["outcome"], line["attempts"]) == ("unknown", 1)
    assert logged(worker.said()) == []


async def test_calls_of_a_worker_that_is_killed(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """Nobody saw their ends; they have one line each, from their agent at their deadline."""
    with bed.worker() as worker:
        handles = [
            await fleet.submit(ToolCall(tool_name="owls.nap_once", arguments={"seconds": 60}), owner, timeout=5)
            for _ in range(3)
        ]
        await wait_until(lambda: owls.running == 3, "the module has the calls")
        worker.process.kill()
        results = await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles))
    lines = await audit(bed)

    assert {result.audit.call_id for result in results if result.audit} == set(lines)
    assert {(line["outcome"], line["error_code"]) for line in lines.values()} == {("unknown", "timed_out")}
