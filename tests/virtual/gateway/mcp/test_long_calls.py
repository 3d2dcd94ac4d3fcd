"""Calls that last: as a task, as a stream with progress, and as a call that a client asks for with tools."""

import asyncio
import itertools
from typing import Any

import httpx
import pytest

from bed import clock
from bed.fleet import until
from support.gateways.mcp_requests import TASKS, asked, request_of
from support.module_server import ModuleServer, hold

Json = dict[str, Any]
METHODS = ("tasks/get", "tasks/cancel", "tasks/update")
GRACE_SECONDS = 10
NAP = {"name": "owls.nap", "arguments": {"seconds": 55}}


@pytest.fixture
def given() -> dict[str, Any]:
    return {"mcp_task_tools": {"owls.admin_only", "owls.nothing"}, "default_timeout": 120}


async def ended(client: httpx.AsyncClient, task_id: str) -> Json:
    """A task's end, as its client sees it that asks until it is over."""
    while True:
        result: Json = (await asked(client, "tasks/get", {"taskId": task_id}, TASKS))["result"]
        if result["status"] != "working":
            return result
        await asyncio.sleep(1)


async def test_a_long_call_is_a_task_for_who_takes_tasks(here: httpx.AsyncClient, there: httpx.AsyncClient) -> None:
    """It is followed at any gateway, with its result at the end."""
    created = (await asked(here, "tools/call", NAP, TASKS))["result"]
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


async def test_a_short_call_has_its_result_at_once(here: httpx.AsyncClient) -> None:
    """Also for who takes tasks."""
    short = (await asked(here, "tools/call", {"name": "owls.echo", "arguments": {"a": 1}}, TASKS))["result"]

    assert (short["resultType"], short["structuredContent"]) == ("complete", {"a": 1})


async def test_a_task_is_cancelled(here: httpx.AsyncClient, owls: ModuleServer) -> None:
    """Its call is interrupted in its module, and a second order changes nothing."""
    created = (await asked(here, "tools/call", NAP, TASKS))["result"]
    await until(lambda: owls.running, "it is in its module")
    answers = [await asked(here, "tasks/cancel", {"taskId": created["taskId"]}, TASKS) for _ in range(2)]
    end = await ended(here, created["taskId"])
    await until(lambda: not owls.running, "it is interrupted")

    assert [answer["result"]["resultType"] for answer in answers] == ["complete", "complete"]
    assert end["status"] == "cancelled"


UNKNOWN = "00000000-0000-4000-8000-000000000000"
REFUSED: list[tuple[str, tuple[str, ...], Json, Json, int]] = [
    ("somebody else's or unknown", METHODS, {"taskId": UNKNOWN}, TASKS, -32602),
    ("no id at all", METHODS, {"taskId": "../calls"}, TASKS, -32602),
    ("not declared", METHODS, {"taskId": UNKNOWN}, {}, -32021),
    ("gone from the protocol", ("tasks/list", "tasks/result"), {"taskId": "x"}, TASKS, -32601),
]


async def test_tasks_that_are_refused(here: httpx.AsyncClient) -> None:
    """Each is authorised for itself, and unknown ones and those of others look alike."""
    for what, methods, params, capabilities, code in REFUSED:
        for method in methods:
            assert (await asked(here, method, params, capabilities))["error"]["code"] == code, (what, method)


async def test_a_tasks_name_header_must_be_its_id(here: httpx.AsyncClient) -> None:
    """-32020, as of every header that says something else than the body."""
    created = (await asked(here, "tools/call", NAP, TASKS))["result"]
    body, headers = request_of("tasks/get", {"taskId": created["taskId"]}, TASKS)
    answer = await here.post("/mcp", json=body, headers={**headers, "mcp-name": "another"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
    await asked(here, "tasks/cancel", {"taskId": created["taskId"]}, TASKS)


async def test_who_takes_no_tasks_is_told_that_the_call_runs(here: httpx.AsyncClient) -> None:
    """After the wait budget, with the call's id; the tools for it say where it is, bring its result and take it back."""
    running = (await asked(here, "tools/call", NAP))["result"]
    call_id = running["_meta"]["toolfleet/callId"]
    asks = {"name": "call_status", "arguments": {"call_id": call_id}}
    place = (await asked(here, "tools/call", asks))["result"]
    result = (await asked(here, "tools/call", {"name": "call_wait", "arguments": {"call_id": call_id}}))["result"]

    assert running["_meta"]["toolfleet/running"] is True
    assert call_id in running["content"][0]["text"]
    assert place["structuredContent"]["state"] == "running"
    assert (result["isError"], result["content"][0]["text"]) == (False, "awake")


async def test_a_running_call_is_taken_back_by_a_tool(here: httpx.AsyncClient, owls: ModuleServer) -> None:
    """It ends as cancelled."""
    running = (await asked(here, "tools/call", NAP))["result"]
    order = {"name": "call_cancel", "arguments": {"call_id": running["_meta"]["toolfleet/callId"]}}
    result = (await asked(here, "tools/call", order))["result"]
    await until(lambda: not owls.running, "it is interrupted")
    assert result["_meta"]["toolfleet/error"]["error_code"] == "cancelled"


async def test_a_call_that_nobody_has_begun(here: httpx.AsyncClient) -> None:
    """A failure in words, which a model reads."""
    for tool, call_id in itertools.product(("call_status", "call_wait", "call_cancel"), (UNKNOWN, "x", 7)):
        answer = await asked(here, "tools/call", {"name": tool, "arguments": {"call_id": call_id}})
        assert answer["result"]["isError"], (tool, call_id)


async def abandoned(client: httpx.AsyncClient, owls: ModuleServer, key: str | None, *, seconds: float = 25) -> None:
    """Begin a call for once, and leave it when it has begun."""
    meta = {} if key is None else {"toolfleet/idempotencyKey": key}
    nap = {"name": "owls.nap_once", "arguments": {"seconds": seconds}}
    calling = asyncio.create_task(asked(client, "tools/call", nap, {}, meta, path="/mcp"))
    await until(lambda: owls.running, "it is in its module")
    calling.cancel()
    await asyncio.wait({calling})


async def test_a_cut_stream_leaves_a_call_with_a_key_a_grace(
    here: httpx.AsyncClient, there: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """A repeat within it joins the call, at another gateway as well, and gets the first result: it happens once."""
    await abandoned(here, owls, "grace", seconds=15)
    await asyncio.sleep(GRACE_SECONDS - 1)
    meta = {"toolfleet/idempotencyKey": "grace"}
    result = await asked(there, "tools/call", {"name": "owls.nap_once", "arguments": {"seconds": 15}}, {}, meta)
    assert (result["result"]["isError"], len(owls.calls("nap_once"))) == (False, 1)


@pytest.mark.parametrize(("key", "seconds"), [("nobody", GRACE_SECONDS), (None, 0)])
async def test_a_call_that_nobody_comes_for_is_cancelled(
    here: httpx.AsyncClient, owls: ModuleServer, key: str | None, seconds: float
) -> None:
    """It is interrupted before its own end: after the grace, or at once if it has no key, for nobody could find it again."""
    await abandoned(here, owls, key)
    before = clock.monotonic()
    await until(lambda: owls.interrupted, "it is interrupted")
    assert seconds - 1 <= clock.monotonic() - before <= seconds + 2


async def test_a_tool_can_be_kept_for_who_takes_tasks(here: httpx.AsyncClient, owls: ModuleServer) -> None:
    """Others are refused before anything has happened, and told what they lack; a tool that is not there is unknown to all."""
    kept = {"name": "owls.admin_only", "arguments": {}}
    refused = (await asked(here, "tools/call", kept))["error"]
    unknown = (await asked(here, "tools/call", {"name": "owls.nothing", "arguments": {}}))["error"]
    assert owls.calls("admin_only") == []
    held = hold(owls, "admin_only")
    created = (await asked(here, "tools/call", kept, TASKS))["result"]
    held.set()

    assert (refused["code"], unknown["code"]) == (-32021, -32602)
    assert refused["data"]["requiredCapabilities"] == {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    assert created["resultType"] == "task"
    assert (await ended(here, created["taskId"]))["status"] == "completed"
