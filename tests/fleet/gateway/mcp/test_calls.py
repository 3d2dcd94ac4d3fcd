"""Calls of MCP clients, of both eras, through a gateway, Redis, a worker and a module."""

import asyncio
import json
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from support.gateways.gateway_process import Gateway
from support.gateways.mcp_clients import ERAS, Era, mcp_client
from support.gateways.old_sessions import OldSession
from support.gateways.raw_http import answer_to, request
from support.module_server import ModuleServer
from support.waiting import wait_until

ERROR = "toolfleet/error"


def text_of(result: types.CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, types.TextContent)
    return block.text


def error_of(result: types.CallToolResult) -> dict[str, Any]:
    assert result.is_error
    assert result.meta is not None
    facts: dict[str, Any] = result.meta[ERROR]
    return facts


@pytest.mark.parametrize("era", ERAS)
async def test_tools_are_listed_and_called(one: Gateway, era: Era) -> None:
    """All modules' tools by their full names, and what a tool returns as structured content and as text."""
    async with mcp_client(one, era) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("owls.echo", {"text": "hoo"})

    assert {"owls.echo", "owls.nap", "call_status", "call_wait", "call_cancel"} <= set(names)
    assert names[: len(names) - 3] == sorted(names[: len(names) - 3])
    assert (result.is_error, result.structured_content) == (False, {"text": "hoo"})
    assert text_of(result) == '{"text":"hoo"}'


@pytest.mark.parametrize("era", ERAS)
async def test_one_modules_tools_have_bare_names(one: Gateway, era: Era) -> None:
    """At `/mcp/owls` nothing else is seen, and another module's tools are unknown."""
    async with mcp_client(one, era, path="/mcp/owls") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("echo", {"text": "hoo"})
        with pytest.raises(MCPError) as refused:
            await client.call_tool("mice.echo", {})

    assert {"echo", "nap"} <= names
    assert not any(name.startswith("owls.") for name in names)
    assert result.structured_content == {"text": "hoo"}
    assert refused.value.code == types.INVALID_PARAMS


@pytest.mark.parametrize("era", ERAS)
async def test_a_failure_says_what_is_known_of_its_effect(one: Gateway, era: Era) -> None:
    """In `_meta` for programs, and in the text for the model, with the hint."""
    async with mcp_client(one, era) as client:
        result = await client.call_tool("owls.garble", {})

    facts = error_of(result)
    assert (facts["error_code"], facts["effect_state"], facts["retryable"]) == ("invalid_response", "unknown", False)
    assert facts["hint"] in text_of(result)
    assert "effect_state: unknown" in text_of(result)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", ["owls.nothing", "nobody.echo", "echo", ""])
async def test_an_unknown_tool_is_an_error_of_the_protocol(one: Gateway, era: Era, name: str) -> None:
    """-32602, as the protocol has it, for every name that no tool has."""
    async with mcp_client(one, era) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool(name, {})
    assert (refused.value.code, "Unknown tool" in refused.value.message) == (types.INVALID_PARAMS, True)


@pytest.mark.parametrize("era", ERAS)
async def test_a_repeat_with_its_key_brings_the_first_result(
    owls: ModuleServer, one: Gateway, two: Gateway, era: Era
) -> None:
    """At any gateway, under a new id of its request; other arguments are another call."""
    owls.forget()
    meta: Any = {"claudecode/toolUseId": f"toolu_{era}"}
    async with mcp_client(one, era) as here, mcp_client(two, era) as there:
        first = await here.call_tool("owls.nap_once", {"seconds": 0.1}, meta=meta)
        again = await there.call_tool("owls.nap_once", {"seconds": 0.1}, meta=meta)
        other = await there.call_tool("owls.nap_once", {"seconds": 0.2}, meta=meta)

    assert first.meta is not None
    assert first.meta == again.meta
    assert other.meta != first.meta
    assert len(owls.calls("nap_once")) == 2


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_gives_up_cancels_its_call(owls: ModuleServer, one: Gateway, era: Era) -> None:
    """A newer one by closing its stream, an older one by a notification: what nobody wants is interrupted in its module."""
    owls.forget()
    async with mcp_client(one, era) as client:
        calling = asyncio.create_task(client.call_tool("owls.nap", {"seconds": 60}))
        await wait_until(lambda: owls.running, "the call is in its module")
        calling.cancel()
        await asyncio.wait({calling})
        await wait_until(lambda: not owls.running, "it is interrupted")


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_a_request_that_its_client_has_cancelled_gets_no_answer(
    owls: ModuleServer, here: httpx.AsyncClient, version: str
) -> None:
    """Its stream ends without one, and the session goes on."""
    session = await OldSession.open(here, "/mcp", version)
    params = {"name": "owls.nap", "arguments": {"seconds": 60}}
    body = {"jsonrpc": "2.0", "id": "nap", "method": "tools/call", "params": params}
    calling = asyncio.create_task(here.post("/mcp", json=body, headers=session.headers))
    await wait_until(lambda: owls.running, "the call is in its module")
    over = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "nap"}}
    taken = await here.post("/mcp", json=over, headers=session.headers)
    answer = await calling

    assert (taken.status_code, answer.status_code) == (202, 200)
    assert "jsonrpc" not in answer.text, answer.text
    assert (await session.ask(here, "tools/call", name="owls.echo", arguments={"text": "hoo"}))["result"]


@pytest.mark.parametrize("padding", ["", "  ", "\t"])
async def test_spaces_around_a_header_are_no_part_of_it(one: Gateway, padding: str) -> None:
    """A name that is compared with the body's is the same with them: HTTP has them stripped before a value is looked at."""
    names = ("protocolVersion", "clientCapabilities")
    meta = dict(zip((f"io.modelcontextprotocol/{name}" for name in names), ("2026-07-28", {}), strict=True))
    params = {"name": "owls.echo", "arguments": {"text": "hoo"}, "_meta": meta}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = (
        "Accept: application/json, text/event-stream",
        "MCP-Protocol-Version: 2026-07-28",
        "Mcp-Method: tools/call",
        f"Mcp-Name: {padding}owls.echo{padding}",
    )
    sent = request("POST", "/mcp", key=one.key, headers=headers, body=json.dumps(asked))

    answer = await answer_to(one, sent)

    assert answer.status == 200, answer
    assert json.loads(answer.body)["result"]["structuredContent"] == {"text": "hoo"}


@pytest.mark.parametrize(("version", "is_told"), [("2025-11-25", True), ("2025-06-18", False)])
async def test_a_stream_says_when_to_come_again(here: httpx.AsyncClient, version: str, is_told: bool) -> None:
    """In its first event, to clients that read that; and it promises no event once more: none has an id."""
    session = await OldSession.open(here, "/mcp", version)
    answer = await session.post(here, "tools/call", name="owls.echo", arguments={"text": "hoo"})

    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.text.splitlines()
    assert lines.count("retry: 1000") == is_told
    assert ("retry: 1000" in lines[: lines.index("")]) == is_told
    assert [line for line in lines if line.startswith("id:")] == []
    assert "hoo" in answer.text
