"""Operators watch the fleet in Flower, each tool under its own name."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from support.fleet import TestBed, program
from support.module_server import ModuleServer
from support.waiting import wait_until, wait_until_sync
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_workers.commands import flower_command
from toolfleet_workers.ports import held_port


@pytest.fixture(scope="module")
def flower_url(bed: TestBed, worker: WorkerProcess) -> Iterator[str]:
    """Flower, which has seen the worker."""
    with held_port(0) as port, program(bed, flower_command("127.0.0.1", port), "flower", ready="Visit me"):
        url = f"http://127.0.0.1:{port}"
        seen = "flower_worker_online{"
        wait_until_sync(lambda: seen in httpx.get(f"{url}/metrics", timeout=10).text, "Flower hears the worker")
        yield url


@pytest.fixture
async def flower(flower_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=flower_url, timeout=10) as client:
        yield client


async def metrics(flower: httpx.AsyncClient, task: str) -> dict[str, float]:
    """Flower's count of events of one task, by type."""
    text = (await flower.get("/metrics")).text
    found = re.findall(
        rf'^flower_events_total\{{task="{re.escape(task)}",type="([^"]+)".*\}} (.+)$', text, re.MULTILINE
    )
    return {kind: float(count) for kind, count in found}


async def seen(flower: httpx.AsyncClient, task: str, kind: str) -> dict[str, float]:
    counts = await metrics(flower, task)
    async with asyncio.timeout(20):
        while kind not in counts:
            counts = await metrics(flower, task)
    return counts


async def test_each_tool_has_its_own_name(fleet: ToolFleet, owner: Caller, flower: httpx.AsyncClient) -> None:
    """A call is a task named like its tool, never like our one registered task."""
    result = await fleet.call(ToolCall(tool_name="owls.echo", arguments={"password": "hunter2"}), owner)
    assert result.audit is not None
    await seen(flower, "owls.echo", "task-succeeded")
    page = (await flower.get(f"/task/{result.audit.call_id}")).text

    assert "owls.echo" in page
    assert "password=…" in page
    assert "toolfleet.execute" not in (await flower.get("/metrics")).text


async def test_a_retry_keeps_the_name(fleet: ToolFleet, owner: Caller, flower: httpx.AsyncClient) -> None:
    """Both attempts of a call are counted for its tool: received twice, retried once, ended once."""
    await fleet.call(ToolCall(tool_name="owls.fail"), owner)
    counts = await seen(flower, "owls.fail", "task-succeeded")

    assert (counts["task-received"], counts["task-retried"], counts["task-succeeded"]) == (2, 1, 1)


async def test_pages_answer_while_calls_run(
    fleet: ToolFleet, owner: Caller, flower: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """Workers, tasks, queues and metrics can be looked at in the middle of the work."""
    nap = await fleet.submit(ToolCall(tool_name="owls.nap", arguments={"seconds": 2}), owner)
    await wait_until(lambda: owls.running, "the module has the call")
    pages = {
        path: await flower.get(path) for path in ("/", "/workers", "/tasks", "/broker", "/metrics", "/healthcheck")
    }
    async with asyncio.timeout(20):
        while "tools.owls" not in pages["/broker"].text:
            pages["/broker"] = await flower.get("/broker")

    assert {path: page.status_code for path, page in pages.items() if page.status_code not in {200, 302}} == {}
    assert (await nap.result(20)).success
