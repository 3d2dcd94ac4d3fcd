"""What a module answers of tools that end as their time does, by a clock of their own, or by what they do when they are cancelled."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message

from support.waiting import wait_until
from toolfleet.sdk import Context, Module, ModuleClient, ToolError

began = list[str]()


def make_owls() -> Module:
    owls = Module("owls")
    began.clear()

    @owls.tool(effect="read")
    async def own_clock(context: Context) -> None:
        began.append("own_clock")
        async with asyncio.timeout(context.seconds_left):
            await asyncio.Event().wait()

    @owls.tool(effect="read")
    def in_a_thread(context: Context) -> None:
        if not threading.Event().wait(context.seconds_left):
            raise TimeoutError("timed out")  # as a socket's own timeout does

    @owls.tool(effect="read")
    async def badly_cleaned() -> None:
        try:
            began.append("badly_cleaned")
            await asyncio.Event().wait()
        finally:
            raise OSError("the connection is gone")

    @owls.tool
    async def rolled_back(state: str) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if state == "success":
                return "just in time"
            raise ToolError("It was stopped.", effect_state=state) from None  # type: ignore[arg-type]

    @owls.tool(effect="read")
    async def crash() -> None:
        raise OSError("the connection is gone")

    return owls


@pytest.fixture
async def owls() -> AsyncIterator[ModuleClient]:
    async with make_owls().client() as client:
        yield client


async def execute(owls: ModuleClient, tool: str, milliseconds: int, **arguments: str) -> dict[str, Any]:
    headers = {"Toolfleet-Time-Left-Ms": str(milliseconds), "Idempotency-Key": "one"}
    body = {"tool_name": f"owls.{tool}", "arguments": arguments}
    answer: dict[str, Any] = (await owls.http.post("/execute", json=body, headers=headers)).json()
    return answer


@pytest.mark.parametrize("tool", ["own_clock", "in_a_thread", "badly_cleaned"])
async def test_a_tool_that_fails_as_its_time_ends_was_stopped(owls: ModuleClient, tool: str) -> None:
    """Whichever clock was first. Nobody knows how far it came, and a repeat of what only reads runs it anew."""
    answer = await execute(owls, tool, 50)

    assert (answer["success"], answer["error_code"]) == (False, "timed_out")
    assert (await owls.reconcile("one"))["state"] == "unknown"


async def test_a_tool_that_fails_as_it_is_stopped_was_stopped(owls: ModuleClient) -> None:
    """Its client has gone, as a worker that dies has: nobody knows how far the tool came, and it has not answered."""
    calling = asyncio.ensure_future(execute(owls, "badly_cleaned", 60_000))
    await wait_until(lambda: began, "it has begun")
    calling.cancel()
    await asyncio.wait({calling})

    assert (await owls.reconcile("one"))["state"] == "unknown"


async def test_a_module_that_ends_in_the_middle_says_that_nobody_knows() -> None:
    """Its server has waited, and cancels what it has: an answer of the server's own would pass for the tool's."""
    module, body = make_owls(), b'{"tool_name": "owls.own_clock", "arguments": {}}'
    requests = iter([{"type": "http.request", "body": body}])
    sent = list[Message]()

    async def receive() -> Message:
        if (request := next(requests, None)) is None:
            await asyncio.Event().wait()
        return request or {}

    async def send(message: Message) -> None:
        sent.append(message)

    async with module.client():
        scope = {"type": "http", "method": "POST", "path": "/execute", "query_string": b"", "headers": []}
        serving = asyncio.ensure_future(module.app(scope, receive, send))
        await wait_until(lambda: began, "the tool runs")
        serving.cancel()
        await asyncio.wait({serving})

    answer = json.loads(sent[1]["body"])
    assert (sent[0]["status"], answer["success"], answer["effect_state"]) == (200, False, "unknown")
    assert answer["error_code"] == "outcome_unknown"


@pytest.mark.parametrize("state", ["none", "done"])
async def test_a_stopped_tool_that_knows_its_effect_says_so(owls: ModuleClient, state: str) -> None:
    """Its word counts, whatever the time was."""
    answer = await execute(owls, "rolled_back", 50, state=state)

    assert (answer["error"], answer["effect_state"]) == ("It was stopped.", state)
    assert "error_code" not in answer


async def test_a_stopped_tool_that_has_succeeded_says_so(owls: ModuleClient) -> None:
    """It is remembered, too."""
    assert (await execute(owls, "rolled_back", 50, state="success"))["result"] == "just in time"
    assert (await owls.reconcile("one"))["result"] == "just in time"


async def test_a_tool_that_fails_before_its_time_has_failed(owls: ModuleClient) -> None:
    """By its own fault, and not the clock's."""
    answer = await execute(owls, "crash", 60_000)

    assert "failed inside the module (OSError)" in answer["error"]
    assert "error_code" not in answer


async def test_a_failure_of_which_nobody_knows_the_effect_is_told_so_later(owls: ModuleClient) -> None:
    """The fleet, whose clock was first, asks what became of the call: to be executed is not to have had an effect."""
    await execute(owls, "crash", 60_000)
    became = await owls.reconcile("one")

    assert (became["state"], became["success"], became["effect_state"]) == ("done", False, "unknown")
