"""Clients of a gateway are shown the tools of public MCP servers as those describe them."""

import re
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from pydantic import TypeAdapter

from clients.mcp_servers.public_servers import SERVERS, PublicServer
from support.fleet import TestBed
from support.gateways.gateway_process import Gateway
from support.gateways.mcp_clients import mcp_client
from support.hosts.hosted_program import hosted
from support.waiting import PATIENCE_SECONDS, wait_until_answered
from toolfleet_tasks.messages.fleet_results import FOLLOWING_TOOLS

pytestmark = [pytest.mark.clients, pytest.mark.timeout(700)]

_RAW: Any = TypeAdapter(dict[str, Any])  # as it is sent, not as the SDK reads it
_MOST_PAGES = 50


async def listed(client: Client) -> list[dict[str, Any]]:
    """The tools of all pages as they are sent."""
    found, cursor = list[dict[str, Any]](), None
    for _ in range(_MOST_PAGES):
        asked = types.ListToolsRequest(params=types.PaginatedRequestParams(cursor=cursor))
        page: dict[str, Any] = await client.session.send_request(asked, _RAW)
        found += page["tools"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found
    raise AssertionError("its list does not end")


def described(tools: list[dict[str, Any]], server: PublicServer, prefix: str = "") -> dict[str, dict[str, Any]]:
    """All that is said of each of its tools, but for what a gateway decides."""
    found = dict[str, dict[str, Any]]()
    for tool in tools:
        if tool["name"].startswith(prefix) and tool["name"] not in FOLLOWING_TOOLS:
            facts = found[tool["name"].removeprefix(prefix)] = tool.copy()
            del facts["name"]
            facts.pop("execution", None)
            if server.has_sets:
                facts["description"] = sorted(re.findall(r"\w+", facts["description"]))
    return found


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.module)
async def test_a_list_is_the_servers_own(server: PublicServer, bed: TestBed, gateway: Gateway, tmp_path: Path) -> None:
    """With `trusted`, all of a tool but its name and `execution`, at both endpoints."""
    command, env = server.command(tmp_path), server.environment(tmp_path)
    async with Client(StdioServerParameters(command=command[0], args=command[1:], env=env)) as client:
        own = described(await listed(client), server)

    shown = dict[str, Any]()
    with hosted(bed, server.module, command, env):
        await wait_until_answered(
            lambda: _has(gateway, server), "the gateway serves its tools", seconds=3 * PATIENCE_SECONDS
        )
        for path, prefix in (("/mcp", f"{server.module}."), (f"/mcp/{server.module}", "")):
            async with mcp_client(gateway, path=path) as client:
                shown[path] = described(await listed(client), server, prefix)
    assert own
    for tools in shown.values():
        assert tools == own


async def _has(gateway: Gateway, server: PublicServer) -> bool:
    async with gateway.client() as client:
        answer = await client.get("/tools", params={"module": server.module})
    return bool(answer.json()["tools"])
