"""Apps of MCP servers run in clients of a gateway: their pages are read there, and what they ask is asked of the fleet."""

import json
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.packages import NODE, SuiteMissing, installed_clients
from support.fleet import TestBed
from support.gateways.gateway_process import Gateway
from support.gateways.node_clients import node, printed
from support.hosts.hosted_program import hosted
from support.waiting import PATIENCE_SECONDS, wait_until_answered
from toolfleet_cli.local.redis_server import free_port

# The revision that a client speaks, and what it finds said of apps: before 2026-07-28 no server says so.
ERAS: dict[str, tuple[str, object]] = {"legacy": ("2025-11-25", None), "modern": ("2026-07-28", {})}
PAGE = "text/html;profile=mcp-app"
_PACKAGES = "node_modules/@modelcontextprotocol/server-{}/dist/index.js"
_INSTALL_SECONDS = 180
# Of each server: the tool that has an app, and what the app calls by the name that its server gives it.
APPS = {
    "debug": ("debug-tool", {"name": "debug-refresh", "arguments": {}}),
    "map": ("show-map", {"name": "show-map", "arguments": {"label": "here"}}),
}

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def installed() -> Path:
    try:
        return installed_clients(seconds=_INSTALL_SECONDS)
    except SuiteMissing as exc:
        pytest.skip(f"The servers cannot be had: {exc}")


@pytest.fixture
def modules(installed: Path, bed: TestBed, tmp_path: Path) -> Iterator[None]:
    env = {"DEBUG_LOG_FILE": str(tmp_path / "debug.log")}
    commands = {name: [str(NODE), str(installed / _PACKAGES.format(name)), "--stdio"] for name in APPS}
    with hosted(bed, "debug", commands["debug"], env), hosted(bed, "map", commands["map"], env):
        yield


async def shown(installed: Path, era: str, url: str, key: str, tool: str, asked: dict[str, Any]) -> dict[str, Any]:
    """What a client that shows the tool's app is given, and the app by it."""
    async with node(installed, "app.mjs", era, url, key, tool, json.dumps(asked)) as process:
        found: dict[str, Any] = json.loads(await printed(process))
    return found


@asynccontextmanager
async def served(installed: Path, name: str) -> AsyncGenerator[str]:
    """The endpoint of the server itself."""
    port = free_port()
    async with node(installed, _PACKAGES.format(name), PORT=str(port)) as process:
        assert process.stdout is not None
        await process.stdout.readline()
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.mark.parametrize("name", APPS)
@pytest.mark.parametrize("era", ERAS)
async def test_an_app_is_shown_and_asks_as_at_its_server(
    installed: Path, gateway: Gateway, modules: None, era: str, name: str
) -> None:
    """Its page with all that is said of it, and the results of what it calls and reads, at both endpoints of a gateway."""
    tool, asked = APPS[name]
    async with served(installed, name) as url:
        own = await shown(installed, era, url, "none", tool, asked)
    async with gateway.client() as client:

        async def is_served() -> bool:
            listed = (await client.get("/tools")).json()["tools"]
            return {f"{module}.{tool}" for module, (tool, _) in APPS.items()} <= {each["name"] for each in listed}

        await wait_until_answered(is_served, "the gateway serves the modules", seconds=3 * PATIENCE_SECONDS)
        for path, prefix in ((f"/mcp/{name}", ""), ("/mcp", f"{name}.")):
            found = await shown(installed, era, f"{gateway.url}{path}", gateway.key, f"{prefix}{tool}", asked)

            assert (found["revision"], found.get("declared")) == ERAS[era]
            assert described(found["tools"], prefix) == described(own["tools"])
            assert by_address(own["resources"]).items() <= by_address(found["resources"]).items()
            assert found["contents"] == found["read"] == own["contents"]
            assert found["contents"][0]["mimeType"] == PAGE
            assert answer_in(found["called"]) == answer_in(own["called"])
            assert found["called"]["_meta"].keys() > own["called"].get("_meta", {}).keys()
        lines = (await client.get("/operations/audit", params={"tool": name, "limit": 100})).json()["lines"]
    assert {f"{name}.{asked['name']}", f"{name}.mcp.resources.read"} <= {line["tool"] for line in lines}


def described(tools: list[dict[str, Any]], prefix: str = "") -> dict[str, Any]:
    """All of each tool of the server but what a gateway decides."""
    left_out = {"name", "execution"}
    return {
        tool["name"].removeprefix(prefix): {key: value for key, value in tool.items() if key not in left_out}
        for tool in tools
        if tool["name"].startswith(prefix)
    }


def by_address(resources: list[dict[str, Any]]) -> dict[str, Any]:
    return {each["uri"]: each for each in resources}


def answer_in(result: dict[str, Any]) -> str:
    """What a result says, without times and counts."""
    return re.sub(r"\d+", "0", json.dumps([result["content"], result.get("structuredContent")]))
