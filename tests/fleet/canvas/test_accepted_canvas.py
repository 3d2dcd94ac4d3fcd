"""Links of Celery's canvas that their module accepts: what follows them begins when they have really ended, once."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.canvas import Signature

from support.fleet import TestBed
from support.module_server import serve
from support.servers.hatchery import HATCHED, Hatchery, make_hatchery
from support.waiting import wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet

KEY = "a secret of more than thirty-two characters"
SECONDS = 40


@pytest.fixture
def nest() -> Iterator[Hatchery]:
    hatchery = make_hatchery()
    with serve(hatchery.server):
        yield hatchery


@pytest.fixture
def bed(redis_url: str, nest: Hatchery, tmp_path: Path) -> TestBed:
    return TestBed(redis_url, (nest.server,), tmp_path, {"signing_key": KEY, "visibility_timeout": 4})


@pytest.fixture
async def agent(bed: TestBed) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


@pytest.fixture
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


async def link(agent: ToolFleet, caller: Caller, method: str) -> Signature:
    """A call as a part of a canvas."""
    made: Signature = await agent.canvas.signature(ToolCall(tool_name=f"nest.{method}"), caller, timeout=120)
    return made


async def begun(canvas: Any) -> Any:
    """Celery publishes by blocking."""
    return await asyncio.to_thread(canvas.apply_async)


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "its worker is killed meanwhile"])
async def test_a_chain_goes_on_when_a_link_has_ended(
    bed: TestBed, worker: WorkerProcess, agent: ToolFleet, nest: Hatchery, owner: Caller, is_killed: bool
) -> None:
    """Not when it is accepted: the next link begins once, after the module has said what it came to."""
    links = [await link(agent, owner, "hatch"), await link(agent, owner, "quick")]
    ended = await begun(chain(*links))
    await wait_until(lambda: len(nest.asked) >= 3, "it goes on", seconds=SECONDS)
    assert nest.server.calls("quick") == []
    if is_killed:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        with bed.worker():
            nest.answer = HATCHED
            result = await agent.canvas.result_of(ended, timeout=SECONDS)
    else:
        nest.answer = HATCHED
        result = await agent.canvas.result_of(ended, timeout=SECONDS)

    assert (result is not None and result.success, len(nest.begun)) == (True, 1)
    assert len(nest.server.calls("quick")) == 1


async def test_what_follows_a_link_that_failed_is_not_called(
    worker: WorkerProcess, agent: ToolFleet, nest: Hatchery, owner: Caller
) -> None:
    """The module has forgotten it: its end is unknown, and the next link is left out."""
    links = [await link(agent, owner, "hatch"), await link(agent, owner, "quick")]
    await begun(chain(*links))
    await wait_until(lambda: nest.asked, "it goes on", seconds=SECONDS)
    nest.answer = {"state": "unknown"}
    result = await agent.canvas.result_of(links[0], timeout=SECONDS)

    assert result is not None
    assert (result.error_code, result.effect_state) == ("outcome_unknown", "unknown")
    assert (await agent.call(ToolCall(tool_name="nest.quick"), owner)).success  # whatever was published has been seen
    assert len(nest.server.calls("quick")) == 1


async def test_the_body_of_a_chord_waits_for_all_of_them(
    worker: WorkerProcess, agent: ToolFleet, nest: Hatchery, owner: Caller
) -> None:
    """Of three in its header each is begun once; the body is called once, after the last has ended."""
    header = [await link(agent, owner, "hatch") for _ in range(3)]
    ended = await begun(chord(group(header), await link(agent, owner, "quick")))
    await wait_until(partial(nest.has_begun, 3), "all have begun", seconds=SECONDS)
    await wait_until(lambda: len({asked["handle"] for asked in nest.asked}) == 3, "all go on", seconds=SECONDS)
    assert nest.server.calls("quick") == []
    nest.answer = HATCHED
    result = await agent.canvas.result_of(ended, timeout=SECONDS)
    parts = [await agent.canvas.result_of(each, timeout=SECONDS) for each in header]

    assert (result is not None and result.success, len(nest.begun)) == (True, 3)
    assert [part.result for part in parts if part] == ["an owl"] * 3
    assert len(nest.server.calls("quick")) == 1
