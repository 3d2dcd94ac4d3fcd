"""Operators watch the fleet in Flower, each tool under its own name."""

import html
import re
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from support.fleet import TestBed, program
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer, holding
from support.servers.plain_http import PLAIN
from support.waiting import wait_until, wait_until_answered, wait_until_sync
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.environment import flower_command
from toolfleet_cli.local.redis_server import held_port
from toolfleet_tasks.app import make_app
from toolfleet_tasks.messages.envelope import TASK
from toolfleet_tasks.messages.ids import EVALUATE, RESUME
from toolfleet_tasks.queues import CONTROL


@pytest.fixture(scope="module")
def flower_url(bed: TestBed, worker: WorkerProcess) -> Iterator[str]:
    """Flower, which has seen the worker."""
    with held_port(0) as port, program(bed, flower_command("127.0.0.1", port), "flower", ready="Visit me"):
        url = f"http://127.0.0.1:{port}"
        seen = "flower_worker_online{"
        wait_until_sync(lambda: seen in httpx.get(f"{url}/metrics", verify=PLAIN).text, "Flower hears the worker")
        yield url


@dataclass
class Heard:
    """What Celery's own receiver of events has heard, and what it makes of it."""

    state: Any
    events: list[dict[str, Any]] = field(default_factory=list)

    def hear(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.state.event(event)

    def is_over(self, call_id: str) -> bool:
        return call_id in self.state.tasks and self.state.tasks[call_id].state in {"SUCCESS", "FAILURE"}


@pytest.fixture(scope="module")
def heard(bed: TestBed, worker: WorkerProcess) -> Iterator[Heard]:
    app = make_app(bed.settings)
    heard, is_listening = Heard(app.events.State()), threading.Event()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": heard.hear})
        receiver.on_consume_ready = lambda *_, **__: is_listening.set()
        listening = threading.Thread(target=receiver.capture, kwargs={"timeout": None, "wakeup": False})
        listening.start()
        assert is_listening.wait()
        yield heard
        receiver.should_stop = True
        listening.join()
    app.close()


@pytest.fixture
def calls(bed: TestBed) -> Iterator[FleetCalls]:
    """Calls that no agent has judged."""
    calls = FleetCalls(bed.settings)
    yield calls
    calls.close()


@pytest.fixture
async def flower(flower_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=flower_url, verify=PLAIN) as client:
        yield client


async def metrics(flower: httpx.AsyncClient, task: str) -> dict[str, float]:
    """Flower's count of events of one task, by type."""
    text = (await flower.get("/metrics")).text
    found = re.findall(
        rf'^flower_events_total\{{task="{re.escape(task)}",type="([^"]+)".*\}} (.+)$', text, re.MULTILINE
    )
    return {kind: float(count) for kind, count in found}


def shown_on(page: str) -> dict[str, str]:
    """What Flower's page of a task says, by its label."""
    rows = re.findall(r"<dt>(.*?)</dt>\s*<dd[^>]*>(.*?)</dd>", page, re.DOTALL)
    return {label: html.unescape(re.sub(r"<[^>]*>", "", value)).strip() for label, value in rows}


async def seen(flower: httpx.AsyncClient, task: str, kind: str) -> dict[str, float]:
    counts = dict[str, float]()

    async def is_counted() -> bool:
        counts.update(await metrics(flower, task))
        return kind in counts

    await wait_until_answered(is_counted, f"Flower has counted {kind}")
    return counts


async def test_each_tool_has_its_own_name(fleet: ToolFleet, owner: Caller, flower: httpx.AsyncClient) -> None:
    """A call is a task named like its tool, never like our one registered task; its page shows its lane and both limits."""
    others = await metrics(flower, TASK)  # of calls that a test has published without a client
    result = await fleet.call(ToolCall(tool_name="owls.echo", arguments={"password": "hunter2"}), owner)
    await seen(flower, "owls.echo", "task-succeeded")
    page = shown_on((await flower.get(f"/task/{result.audit.call_id}")).text)

    assert (page["Name"], page["Status"], page["Arguments"]) == ("owls.echo", "SUCCESS", "(password=…)")
    assert page["Keyword arguments"] == "lane=fast, soft_limit=31s, hard_limit=40s"
    assert await metrics(flower, TASK) == others


async def test_a_retry_keeps_the_name(fleet: ToolFleet, owner: Caller, flower: httpx.AsyncClient) -> None:
    """Both attempts of a call are counted for its tool: received twice, retried once, ended once."""
    await fleet.call(ToolCall(tool_name="owls.garble_read"), owner)
    counts = await seen(flower, "owls.garble_read", "task-failed")

    assert (counts["task-received"], counts["task-retried"], counts["task-failed"]) == (2, 1, 1)
    assert "task-succeeded" not in counts


async def test_a_failed_call_is_a_failure(
    fleet: ToolFleet, owner: Caller, flower: httpx.AsyncClient, calls: FleetCalls
) -> None:
    """In the metrics and on its page, with its error code, and no word of its module's; Celery's result is a success."""
    result = await fleet.call(ToolCall(tool_name="owls.fail_once"), owner)
    assert result.audit is not None
    counts = await seen(flower, "owls.fail_once", "task-failed")
    page = shown_on((await flower.get(f"/task/{result.audit.call_id}")).text)

    assert counts == {"task-received": 1, "task-started": 1, "task-failed": 1}
    assert (page["Status"], page["Exception"]) == ("FAILURE", "module_error")
    assert "I cannot" not in str(page)
    stored = calls.meta(result.audit.call_id)
    assert (stored["status"], ToolResult.model_validate_json(stored["result"])) == ("SUCCESS", result)


async def test_own_ticks_are_silent_unless_they_fail(calls: FleetCalls, heard: Heard) -> None:
    """Beat sends one each second; of one that fails its name is told, and the kind of the failure."""
    tick = calls.app.send_task(RESUME, queue=CONTROL, ignore_result=True).id
    failing = calls.app.send_task(EVALUATE, args=[], queue=CONTROL, ignore_result=True).id  # of which job?
    await wait_until(lambda: heard.is_over(failing), "the worker has told of the failure")

    own = [event for event in heard.events if event.get("uuid") in {tick, failing}]
    assert [(event["type"], event["name"], event["exception"]) for event in own] == [
        ("task-failed", EVALUATE, "TypeError")
    ]


async def test_pages_answer_while_calls_run(
    fleet: ToolFleet, owner: Caller, flower: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """Workers, tasks, queues and metrics can be looked at in the middle of the work."""

    async def shows_queues() -> bool:
        return "tools.owls" in (await flower.get("/broker")).text

    with holding(owls, "nap"):
        nap = await fleet.submit(ToolCall(tool_name="owls.nap", arguments={"seconds": 0}), owner)
        await wait_until(lambda: owls.running, "the module has the call")
        pages = {path: await flower.get(path) for path in ("/", "/workers", "/tasks", "/metrics", "/healthcheck")}
        await wait_until_answered(shows_queues, "the broker's page shows the queue")

    assert {path: page.status_code for path, page in pages.items() if page.status_code not in {200, 302}} == {}
    assert (await nap.result()).success
