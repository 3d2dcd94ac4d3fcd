"""Celery's canvas with the fleet's signatures, with real processes; `tests/virtual/calls` has the rest."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from celery import chain, chord, group
from celery.canvas import Signature

from support.fleet import SIGNING_KEY, TestBed
from support.module_server import ModuleServer, Request, serve
from support.owls import make_module
from support.waiting import PATIENCE_SECONDS
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleServer]:
    """A journal: a tool that writes a line, once, beside one that fails."""

    async def write(request: Request) -> dict[str, Any]:
        return {"success": True, "result": request["arguments"]["line"]}

    owls = make_module()
    owls.add("write", write, effect="once")
    with serve(owls) as served:
        yield served


@pytest.fixture(scope="module")
def signed(module: ModuleServer, redis_process_url: str, tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    return TestBed(redis_process_url, (module,), tmp_path_factory.mktemp("logs"), {"signing_key": SIGNING_KEY})


@pytest.fixture
async def agent(signed: TestBed, redis_url: str, module: ModuleServer) -> AsyncIterator[ToolFleet]:
    """An agent, and no worker yet, on an empty Redis."""
    assert redis_url == signed.redis_url
    module.forget()
    async with ToolFleet(settings=signed.settings) as fleet:
        yield fleet


@pytest.fixture
def worker(signed: TestBed, agent: ToolFleet) -> Iterator[WorkerProcess]:
    del agent  # it finds Redis empty
    with signed.worker() as worker:
        yield worker


def journal(module: ModuleServer) -> list[str]:
    """What was executed, in the order in which that began."""
    return [str(request["arguments"]["line"]) for request in module.requests]


Link = Callable[..., Any]


@pytest.fixture
def link(agent: ToolFleet, owner: Caller) -> Link:
    """Makes the signature of a call that writes a line."""

    async def make(line: str, method: str = "write") -> Signature:
        call = ToolCall(tool_name=f"owls.{method}", arguments={"line": line})
        return await agent.canvas.signature(call, owner, timeout=60)

    return make


async def begun(canvas: Any) -> Any:
    """Celery publishes by blocking."""
    return await asyncio.to_thread(canvas.apply_async)


@pytest.mark.usual
async def test_a_group_runs_each_of_its_calls_once(
    agent: ToolFleet, worker: WorkerProcess, link: Link, module: ModuleServer
) -> None:
    """Twenty calls side by side are twenty executions, and their results can be read one by one."""
    links = [await link(f"line {i}") for i in range(20)]
    await begun(group(links))
    results = [await agent.canvas.result_of(one, timeout=PATIENCE_SECONDS) for one in links]

    assert [result.result for result in results if result] == [f"line {i}" for i in range(20)]
    assert sorted(journal(module)) == sorted(f"line {i}" for i in range(20))


@pytest.mark.usual
async def test_a_chain_goes_on_in_its_order(
    agent: ToolFleet, worker: WorkerProcess, link: Link, module: ModuleServer
) -> None:
    """Each link begins after the one before it, and gets nothing of its result."""
    links = [await link("one"), await link("two"), await link("three")]
    ended = await begun(chain(*links))
    result = await agent.canvas.result_of(ended, timeout=PATIENCE_SECONDS)

    assert result is not None
    assert (result.result, journal(module)) == ("three", ["one", "two", "three"])


async def test_a_chords_body_is_called_once_after_its_header(
    agent: ToolFleet, worker: WorkerProcess, link: Link, module: ModuleServer
) -> None:
    """When all of the header have ended, and with its own arguments."""
    header, body = [await link(f"part {i}") for i in range(6)], await link("whole")
    ended = await begun(chord(header, body))
    result = await agent.canvas.result_of(ended, timeout=PATIENCE_SECONDS)

    assert result is not None
    assert result.result == "whole"
    assert journal(module)[-1] == "whole"
    assert sorted(journal(module)) == sorted([f"part {i}" for i in range(6)] + ["whole"])


async def test_nothing_follows_a_call_that_has_failed(
    agent: ToolFleet, worker: WorkerProcess, link: Link, module: ModuleServer
) -> None:
    """Its own result is there to read; those of what would have followed say that they were not made."""
    first, second, third = await link("one", "fail"), await link("two"), await link("three")
    await begun(chain(first, second, third))
    results = [await agent.canvas.result_of(one, timeout=PATIENCE_SECONDS) for one in (first, second, third)]

    assert [(result.error_code, result.effect_state) for result in results if result] == [
        ("module_error", "unknown"),
        ("cancelled", "none"),
        ("cancelled", "none"),
    ]
    part, body = await link("part", "fail"), await link("whole")
    await begun(chord([part, await link("other")], body))
    result = await agent.canvas.result_of(body, timeout=PATIENCE_SECONDS)
    assert result is not None
    assert (result.error_code, result.effect_state) == ("cancelled", "none")
    assert "whole" not in journal(module)
    assert "two" not in journal(module)
