"""The server for Claude's agent SDK calls the fleet: asked by the protocol's own client, as Claude Code asks it.

With the SDK and Claude Code themselves: `tests/clients/test_claude.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult, TextContent

from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from support.waiting import wait_until
from toolfleet import Caller, ToolFleet
from toolfleet.adapters.claude import fleet_server


async def ask(client: Client, name: str, arguments: dict[str, Any], call_id: str | None = "toolu_1") -> CallToolResult:
    """Call a tool as Claude Code does: its own id of the call is in the request's `_meta`."""
    meta: Any = None if call_id is None else {"claudecode/toolUseId": call_id}
    return await client.call_tool(name, arguments, meta=meta)


def text(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def test_a_session_sees_its_callers_tools_and_calls_one(
    fleet: ToolFleet, ada: Caller, owls: ModuleServer
) -> None:
    """The tools are those of the caller; the result is what the tool has answered, as text and by itself."""
    server = fleet_server(fleet, ada, most_characters=200_000)
    async with Client(server["instance"]) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        result = await ask(client, "owls__echo", {"text": "hoo"})

    assert (server["type"], server["name"]) == ("sdk", "toolfleet")
    assert listed["owls__echo"].meta == {"anthropic/maxResultSizeChars": 200_000}
    assert "owls__admin_only" not in listed
    assert (text(result), result.structured_content) == ('{"text":"hoo"}', {"text": "hoo"})
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoo"}]


async def test_a_failure_is_worded_and_not_repeated(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """Claude reads the code, what has become of the effect and the hint; nothing is called a second time."""
    async with Client(fleet_server(fleet, ada)["instance"]) as client:
        result = await ask(client, "owls__garble", {})
        unknown = await ask(client, "owls__ecko", {})

    assert result.is_error
    assert "error_code: invalid_response\neffect_state: unknown\nretryable: false\nhint: " in text(result)
    assert text(unknown).startswith("Error: No tool owls__ecko; did you mean owls__echo")
    assert len(owls.calls("garble")) == 1


async def test_a_repeat_joins_and_other_calls_do_not(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """One id with one tool and arguments is one call; a call without an id is always one of its own."""
    async with Client(fleet_server(fleet, ada)["instance"]) as client:
        for call_id, seconds in [("a", 0), ("a", 0), ("a", 0.01), ("b", 0), (None, 0), (None, 0)]:
            assert text(await ask(client, "owls__nap_once", {"seconds": seconds}, call_id)) == "awake"

    assert len(owls.calls("nap_once")) == 5


async def test_a_call_that_is_given_up_is_taken_back(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The worker hangs up on the module."""
    async with Client(fleet_server(fleet, ada)["instance"]) as client:
        asking = asyncio.create_task(ask(client, "owls__nap", {"seconds": 60}))
        await wait_until(lambda: owls.running == 1, "the call runs")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await wait_until(lambda: owls.interrupted, "the module was hung up on")


async def test_a_call_has_the_time_that_the_server_has(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """Claude hears that the call's time was over."""
    async with Client(fleet_server(fleet, ada, timeout=3)["instance"]) as client:
        assert "error_code: timed_out" in text(await ask(client, "owls__nap", {"seconds": 60}, "late"))
    await wait_until(lambda: owls.interrupted, "the module was hung up on")


async def test_progress_is_told_to_whoever_asks_for_it(fleet: ToolFleet, ada: Caller, talker: Talker) -> None:
    """It grows each time, also where the tool does not know how far it is."""
    talker.forget()
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))
        talker.go_on(1)

    async with Client(fleet_server(fleet, ada)["instance"]) as client:
        await client.call_tool("owls__talk", {}, progress_callback=hear)

    assert [progress for progress, _ in heard] == sorted({progress for progress, _ in heard})
    assert heard[-1][1] == "thinking"


async def test_tools_that_come_meanwhile_are_listed_and_called(
    fleet: ToolFleet, ada: Caller, add_tool: Callable[[], Awaitable[None]]
) -> None:
    """Whoever lists again sees them."""
    async with Client(fleet_server(fleet, ada)["instance"]) as client:
        before = {tool.name for tool in (await client.list_tools()).tools}
        await add_tool()
        after = {tool.name for tool in (await client.list_tools()).tools}
        result = await ask(client, "owls__late", {"text": "hoo"})

    assert after - before == {"owls__late"}
    assert text(result) == '{"text":"hoo"}'
