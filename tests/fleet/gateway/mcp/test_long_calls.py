"""Calls that last: as a task, as a stream with progress, and as a call that a client asks for with tools."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.gateways.mcp_requests import TASKS, asked, request_of
from support.module_server import ModuleServer, holding
from support.waiting import wait_until
from support.worker_process import WorkerProcess

Json = dict[str, Any]
NAP = {"name": "owls.nap", "arguments": {"seconds": 0}}
LONG_NAP = {"seconds": 60}
SECONDS = 20


@pytest.fixture(scope="module")
def impatient(bed: TestBed, worker: WorkerProcess) -> Iterator[Gateway]:
    """A gateway whose clients wait a fifth of a second."""
    env = {"TOOLFLEET_MCP_WAIT_SECONDS": "0.2", "TOOLFLEET_MCP_TASK_SECONDS": "0.1", "TOOLFLEET_MCP_GRACE_SECONDS": "1"}
    env["TOOLFLEET_MCP_TASK_TOOLS"] = "owls.admin_only, owls.nothing"
    with gateway_process(bed, env=env) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def patient(bed: TestBed, worker: WorkerProcess) -> Iterator[Gateway]:
    """A gateway to which each call is short that does not wait for a test."""
    with gateway_process(bed, env={"TOOLFLEET_MCP_TASK_SECONDS": "20"}) as gateway:
        yield gateway


@pytest.fixture
async def client(owls: ModuleServer, impatient: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    owls.forget()
    async with impatient.client() as client:
        yield client


async def ended(client: httpx.AsyncClient, task_id: str) -> Json:
    """A task's end, as its client sees it that asks until it is over."""
    async with asyncio.timeout(SECONDS):
        while True:
            result: Json = (await asked(client, "tasks/get", {"taskId": task_id}, TASKS))["result"]
            if result["status"] != "working":
                return result


async def test_a_long_call_is_a_task_for_who_takes_tasks(
    client: httpx.AsyncClient, there: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """It is followed at any gateway, with its result at the end."""
    with holding(owls, "nap"):
        created = (await asked(client, "tools/call", NAP, TASKS))["result"]
        working = (await asked(there, "tasks/get", {"taskId": created["taskId"]}, TASKS))["result"]
    end = await ended(there, created["taskId"])

    assert (created["resultType"], created["status"]) == ("task", "working")
    assert {"createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"} <= created.keys()
    assert (working["resultType"], working["status"]) == ("complete", "working")
    assert working["createdAt"] == created["createdAt"]
    assert (
        end["status"],
        end["result"]["structuredContent" if "structuredContent" in end["result"] else "content"],
    ) == (
        "completed",
        [{"type": "text", "text": "awake"}],
    )
    assert end["result"]["resultType"] == "complete"  # as without a task: the TypeScript SDK's clients insist on it


async def test_a_short_call_has_its_result_at_once(patient: Gateway) -> None:
    """Also for who takes tasks."""
    async with patient.client() as client:
        short = (await asked(client, "tools/call", {"name": "owls.echo", "arguments": {"a": 1}}, TASKS))["result"]

    assert (short["resultType"], short["structuredContent"]) == ("complete", {"a": 1})


async def test_a_task_is_cancelled(client: httpx.AsyncClient, owls: ModuleServer) -> None:
    """Its call is interrupted in its module, and a second order changes nothing."""
    created = (await asked(client, "tools/call", {"name": "owls.nap", "arguments": LONG_NAP}, TASKS))["result"]
    await wait_until(lambda: owls.running, "it is in its module")
    answers = [await asked(client, "tasks/cancel", {"taskId": created["taskId"]}, TASKS) for _ in range(2)]
    end = await ended(client, created["taskId"])
    await wait_until(lambda: not owls.running, "it is interrupted")

    assert [answer["result"]["resultType"] for answer in answers] == ["complete", "complete"]
    assert end["status"] == "cancelled"


REFUSED_TASKS: list[tuple[str, Json, Json, int]] = [
    ("somebody else's or unknown", {"taskId": "00000000-0000-4000-8000-000000000000"}, TASKS, -32602),
    ("no id at all", {"taskId": "../calls"}, TASKS, -32602),
    ("not declared", {"taskId": "00000000-0000-4000-8000-000000000000"}, {}, -32021),
]


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/update"])
@pytest.mark.parametrize(
    ("params", "capabilities", "code"), [row[1:] for row in REFUSED_TASKS], ids=[row[0] for row in REFUSED_TASKS]
)
async def test_tasks_that_are_refused(
    client: httpx.AsyncClient, method: str, params: Json, capabilities: Json, code: int
) -> None:
    """Each is authorised for itself, and unknown ones and those of others look alike."""
    assert (await asked(client, method, params, capabilities))["error"]["code"] == code


@pytest.mark.parametrize("method", ["tasks/list", "tasks/result"])
async def test_methods_of_older_tasks_are_unknown(client: httpx.AsyncClient, method: str) -> None:
    """-32601, for they are gone from the protocol."""
    assert (await asked(client, method, {"taskId": "x"}, TASKS))["error"]["code"] == -32601


async def test_a_tasks_name_header_must_be_its_id(client: httpx.AsyncClient) -> None:
    """-32020, as of every header that says something else than the body."""
    created = (await asked(client, "tools/call", {"name": "owls.nap", "arguments": LONG_NAP}, TASKS))["result"]
    body, headers = request_of("tasks/get", {"taskId": created["taskId"]}, TASKS)
    answer = await client.post("/mcp", json=body, headers={**headers, "mcp-name": "another"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
    await asked(client, "tasks/cancel", {"taskId": created["taskId"]}, TASKS)


async def test_who_takes_no_tasks_is_told_that_the_call_runs(client: httpx.AsyncClient, owls: ModuleServer) -> None:
    """After the wait budget, with the call's id; the tools for it say where it is, bring its result and take it back."""
    with holding(owls, "nap"):
        running = (await asked(client, "tools/call", NAP))["result"]
        call_id = running["_meta"]["toolfleet/callId"]
        asks = {"name": "call_status", "arguments": {"call_id": call_id}}
        place = (await asked(client, "tools/call", asks))["result"]
    async with asyncio.timeout(SECONDS):
        while True:
            waits = {"name": "call_wait", "arguments": {"call_id": call_id}}
            result = (await asked(client, "tools/call", waits))["result"]
            if "toolfleet/running" not in result["_meta"]:
                break

    assert running["_meta"]["toolfleet/running"] is True
    assert call_id in running["content"][0]["text"]
    assert place["structuredContent"]["state"] in {"queued", "running"}
    assert (result["isError"], result["content"][0]["text"]) == (False, "awake")


async def test_a_running_call_is_taken_back_by_a_tool(client: httpx.AsyncClient, owls: ModuleServer) -> None:
    """It ends as cancelled."""
    running = (await asked(client, "tools/call", {"name": "owls.nap", "arguments": LONG_NAP}))["result"]
    order = {"name": "call_cancel", "arguments": {"call_id": running["_meta"]["toolfleet/callId"]}}
    result = (await asked(client, "tools/call", order))["result"]
    await wait_until(lambda: not owls.running, "it is interrupted")
    assert result["_meta"]["toolfleet/error"]["error_code"] == "cancelled"


@pytest.mark.parametrize("tool", ["call_status", "call_wait", "call_cancel"])
@pytest.mark.parametrize("call_id", ["00000000-0000-4000-8000-000000000000", "x", 7])
async def test_a_call_that_nobody_has_begun(client: httpx.AsyncClient, tool: str, call_id: object) -> None:
    """A failure in words, which a model reads."""
    answer = (await asked(client, "tools/call", {"name": tool, "arguments": {"call_id": call_id}}))["result"]
    assert answer["isError"]


async def abandoned(client: httpx.AsyncClient, owls: ModuleServer, key: str | None, *, seconds: float = 60) -> None:
    """Begin a call for once, and leave it when it has begun."""
    meta = {} if key is None else {"toolfleet/idempotencyKey": key}
    nap = {"name": "owls.nap_once", "arguments": {"seconds": seconds}}
    calling = asyncio.create_task(asked(client, "tools/call", nap, {}, meta, path="/mcp"))
    await wait_until(lambda: owls.running, "it is in its module")
    calling.cancel()
    await asyncio.wait({calling})


async def test_a_cut_stream_leaves_a_call_with_a_key_a_grace(owls: ModuleServer, two: Gateway, one: Gateway) -> None:
    """A repeat within it joins the call, at another gateway as well, and gets the first result: it happens once."""
    owls.forget()
    async with one.client() as here, two.client() as there:
        await abandoned(here, owls, "grace", seconds=3)
        meta = {"toolfleet/idempotencyKey": "grace"}
        result = await asked(there, "tools/call", {"name": "owls.nap_once", "arguments": {"seconds": 3}}, {}, meta)
    assert (result["result"]["isError"], len(owls.calls("nap_once"))) == (False, 1)


async def test_a_call_that_nobody_comes_for_is_cancelled_after_the_grace(
    client: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """It is interrupted before its own end."""
    interrupted = len(owls.interrupted)
    await abandoned(client, owls, "nobody")
    await wait_until(lambda: len(owls.interrupted) > interrupted, "it is interrupted")


async def test_a_call_without_a_key_is_cancelled_at_once(owls: ModuleServer, one: Gateway) -> None:
    """Nobody could find it again."""
    owls.forget()
    async with one.client() as client:
        await abandoned(client, owls, None)
        await wait_until(lambda: owls.interrupted, "it is interrupted")


async def test_a_tool_can_be_kept_for_who_takes_tasks(client: httpx.AsyncClient, owls: ModuleServer) -> None:
    """Others are refused before anything has happened, and told what they lack; a tool that is not there is unknown to all."""
    kept = {"name": "owls.admin_only", "arguments": {}}
    refused = (await asked(client, "tools/call", kept))["error"]
    unknown = (await asked(client, "tools/call", {"name": "owls.nothing", "arguments": {}}))["error"]
    assert owls.calls("admin_only") == []
    with holding(owls, "admin_only"):
        created = (await asked(client, "tools/call", kept, TASKS))["result"]

    assert (refused["code"], unknown["code"]) == (-32021, -32602)
    assert refused["data"]["requiredCapabilities"] == {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    assert created["resultType"] == "task"
    assert (await ended(client, created["taskId"]))["status"] == "completed"
