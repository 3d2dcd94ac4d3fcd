"""Real clients of MCP use a gateway: the official SDKs', FastMCP's with tasks, those inside of agent frameworks, and the inspector.

Each lists, calls and reads a failure. What else they do, such as surviving a gateway's restart, is in `tests/clients`.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from conformance.packages import SuiteMissing, installed_clients
from support.gateways.framework_clients import CLIENTS
from support.gateways.gateway_process import Gateway
from support.gateways.node_clients import REVISIONS, inspector, node, printed, sdk_client
from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS

_INSTALL_SECONDS = 60


@pytest.fixture(scope="module")
def installed() -> Path:
    """Where the clients of Node.js are."""
    try:
        return installed_clients(seconds=_INSTALL_SECONDS)
    except SuiteMissing as exc:
        pytest.skip(f"The clients of Node.js cannot be had: {exc}")


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_lists_calls_and_reads_a_failure(one: Gateway, owls: ModuleServer, name: str) -> None:
    """Tools by their names; a result; and of a call that failed what the model needs to decide about another try."""
    owls.forget()
    async with CLIENTS[name](f"{one.url}/mcp", one.key) as client:
        said = await client.call("owls.echo", {"text": "hoo"})
        failed = await client.call("owls.garble", {})

    assert {"owls.echo", "owls.garble"} <= set(client.names)
    assert "hoo" in said
    assert "error_code: invalid_response" in failed
    assert (len(owls.calls("echo")), len(owls.calls("garble"))) == (1, 1)


@pytest.mark.parametrize("name", REVISIONS)
async def test_a_client_of_the_typescript_sdk_lists_calls_and_reads_a_failure(
    installed: Path, one: Gateway, owls: ModuleServer, name: str
) -> None:
    """In its revision of the protocol."""
    owls.forget()
    async with node(installed, *sdk_client(name, one, "read")) as process:
        found = json.loads(await printed(process))

    assert found["revision"] == REVISIONS[name]
    assert {"owls.echo", "owls.garble"} <= set(found["names"])
    assert "hoo" in found["said"][0]
    assert "error_code: invalid_response" in found["said"][1]
    assert found["failed"] == [False, True]
    assert (len(owls.calls("echo")), len(owls.calls("garble"))) == (1, 1)


async def test_the_inspector_lists_calls_and_reads_a_failure(installed: Path, one: Gateway, owls: ModuleServer) -> None:
    """One command each."""
    owls.forget()
    commands = [
        ("--method", "tools/list"),
        ("--method", "tools/call", "--tool-name", "owls.echo", "--tool-args-json", '{"text": "hoo"}'),
        ("--method", "tools/call", "--tool-name", "owls.garble", "--tool-args-json", "{}"),
    ]

    async def ran(words: tuple[str, ...]) -> dict[str, Any]:
        async with node(installed, *inspector("modern", one, *words)) as process, asyncio.timeout(3 * PATIENCE_SECONDS):
            said, errors = await process.communicate()
        assert said, errors
        result: dict[str, Any] = json.loads(said)["result"]
        return result

    listed, echoed, garbled = await asyncio.gather(*map(ran, commands))

    assert {"owls.echo", "owls.garble"} <= {tool["name"] for tool in listed["tools"]}
    assert echoed["structuredContent"] == {"text": "hoo"}
    assert garbled["_meta"]["toolfleet/error"]["error_code"] == "invalid_response"
    assert (len(owls.calls("echo")), len(owls.calls("garble"))) == (1, 1)
