"""What MCP clients are listed, and told of changes; and what stands for a list that is too long."""

import asyncio
from functools import partial
from typing import Any

import mcp_types as types
import pytest
from mcp.client.subscriptions import listen

from bed.fleet import Bed, Gateway, until
from support.gateways.mcp_clients import ERAS, Era, mcp_client
from support.gateways.mcp_requests import asked
from support.module_server import ModuleServer


@pytest.fixture
async def brief(bed: Bed, owls: ModuleServer, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """A gateway that lists five tools at most, and takes calls within a minute for repeats."""
    monkeypatch.setattr("toolfleet_gateway.mcp.tools._MOST_LISTED", 5)
    await bed.serve(owls)
    await bed.worker()
    return await bed.gateway(mcp_repeat_window_seconds=60)


def structure(result: types.CallToolResult) -> dict[str, Any]:
    found = result.structured_content
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("path", ["/mcp", "/mcp/owls"])
async def test_three_tools_stand_for_many(brief: Gateway, path: str) -> None:
    """They are searched, described and called under the names of the endpoint."""
    name = "owls.echo" if path == "/mcp" else "echo"
    async with mcp_client(brief, path=path) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        found = structure(await client.call_tool("search_tools", {"query": "echo"}))
        described = structure(await client.call_tool("describe_tools", {"names": [name, "no.such"]}))
        called = await client.call_tool("call_tool", {"name": name, "arguments": {"text": "hoo"}})
        direct = await client.call_tool(name, {"text": "hoo"})

    assert listed[:3] == ["search_tools", "describe_tools", "call_tool"]
    assert len(listed) == 6
    assert name in [tool["name"] for tool in found["tools"]]
    assert ([tool["name"] for tool in described["tools"]], described["unknown"]) == ([name], ["no.such"])
    assert described["tools"][0]["inputSchema"]["type"] == "object"
    assert called.structured_content == direct.structured_content == {"text": "hoo"}


BAD: list[tuple[str, dict[str, Any]]] = [
    ("search_tools", {}),
    ("search_tools", {"query": "echo", "limit": "many"}),
    ("describe_tools", {"names": []}),
    ("describe_tools", {"names": "owls.echo"}),
]


async def test_wrong_arguments_are_told_in_words(brief: Gateway) -> None:
    """As a failure that a model reads."""
    async with mcp_client(brief) as client:
        for name, arguments in BAD:
            assert (await client.call_tool(name, arguments)).is_error, (name, arguments)


async def test_a_window_takes_an_equal_call_for_a_repeat(brief: Gateway, owls: ModuleServer) -> None:
    """Of a tool that could do it twice, and with the same arguments; a tool that only reads runs each time."""
    async with mcp_client(brief) as client:
        for _ in range(2):
            await client.call_tool("owls.nap_once", {"seconds": 1})
            await client.call_tool("owls.nap", {"seconds": 1})
        await client.call_tool("owls.nap_once", {"seconds": 2})
        before = (len(owls.calls("nap_once")), len(owls.calls("nap")))
        await asyncio.sleep(60)
        await client.call_tool("owls.nap_once", {"seconds": 1})

    assert before == (2, 2)
    assert len(owls.calls("nap_once")) == 3


async def switch(gateway: Gateway, tool: str, *, on: bool) -> None:
    """Have an operator switch a tool, and wait until the gateway has heard of it."""
    async with gateway.client() as client:
        answer = await client.post(f"/operations/tools/{tool}/{'enable' if on else 'disable'}", json={})
        assert answer.is_success, answer.text

        async def is_so() -> bool:
            listed = (await asked(client, "tools/list", {}))["result"]["tools"]
            return (tool in {each["name"] for each in listed}) == on

        await until(is_so, f"{tool} is switched")


@pytest.mark.parametrize("has_tools", [True, False])
async def test_a_newer_client_is_told_of_changed_lists(gateways: tuple[Gateway, Gateway], has_tools: bool) -> None:
    """By the stream that it listens to: where tools change, their apps may."""
    one, _ = gateways
    wanted = partial(listen, tools_list_changed=True) if has_tools else partial(listen, resources_list_changed=True)
    async with mcp_client(one) as client, wanted(client.session) as changes:
        told = asyncio.ensure_future(anext(aiter(changes)))
        await asyncio.sleep(0)
        await switch(one, "owls.turn_away", on=False)
        assert await told


async def test_an_older_client_is_told_of_changed_tools(gateways: tuple[Gateway, Gateway]) -> None:
    """By the stream of its session, which it opens a moment after it has connected."""
    heard = asyncio.Event()

    async def hear(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification) or "list_changed" in str(message):
            heard.set()

    async with mcp_client(gateways[0], "legacy", message_handler=hear):
        await asyncio.sleep(1)
        await switch(gateways[1], "owls.turn_away", on=False)
        await heard.wait()


@pytest.mark.parametrize("era", ERAS)
async def test_lists_are_private_and_in_one_order(gateways: tuple[Gateway, Gateway], era: Era) -> None:
    """Each caller sees its own."""
    async with mcp_client(gateways[0], era) as client:
        first, second = await client.list_tools(), await client.list_tools()
    assert [tool.name for tool in first.tools] == [tool.name for tool in second.tools]
    if era == "auto":
        assert (first.cache_scope, (first.ttl_ms or 0) > 0) == ("private", True)
