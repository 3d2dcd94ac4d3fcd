"""What models and programs read of results that MCP servers behind the fleet return: what they would read at the server itself."""

import asyncio
import base64
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from clients.mcp_servers.public_servers import SERVERS
from conformance.packages import SuiteMissing, installed_clients
from support.fleet import TestBed, program
from support.gateways.framework_clients import CLIENTS
from support.gateways.gateway_process import Gateway
from support.gateways.node_clients import REVISIONS, node, printed
from support.hosts.hosted_program import hosted
from support.hosts.mcp_server import listens
from support.hosts.texts_server import PIXEL, TABLE
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from support.worker_process import TESTS
from toolfleet_cli.local.redis_server import free_port

PROGRAM = Path(__file__).with_name("run_mcp_client.py")
SERVER = TESTS / "support" / "hosts" / "texts_server.py"
TOOLS = ("table", "several", "apart")
TEXT = "alpha\nbeta\ngamma\n"
_INSTALL_SECONDS, _SECONDS = 180, 90
_OWN = re.compile(r"lc_[0-9a-f-]{36}|timestamp=datetime[^)]*\)|tool_name='[^']*'")

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def server(bed: TestBed, gateway: Gateway) -> Iterator[str]:
    """The endpoint of a server which is the module `texts` as well."""
    port = free_port()
    with (
        program(bed, [sys.executable, str(SERVER), str(port)], "texts", ready="", env={"PYTHONPATH": str(TESTS)}),
        hosted(bed, "texts", [sys.executable, str(SERVER)], {}),
    ):
        wait_until_sync(lambda: listens(port), "the server listens", seconds=3 * PATIENCE_SECONDS)
        wait_until_sync(
            lambda: is_listed(gateway, "texts.table"), "the gateway serves the module", seconds=3 * PATIENCE_SECONDS
        )
        yield f"http://127.0.0.1:{port}/mcp"


def is_listed(gateway: Gateway, tool: str) -> bool:
    headers = {"Authorization": f"Bearer {gateway.key}"}
    return f'"{tool}"' in httpx.get(f"{gateway.url}/tools", headers=headers, trust_env=False).text


async def read(client: str, url: str, key: str, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """What the model of a client reads of the results of these calls."""
    command = [sys.executable, str(PROGRAM), client, url, key, "each", json.dumps(calls)]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS), "NO_PROXY": "*"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(_SECONDS):
        said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    found: list[str] = json.loads(said.decode().splitlines()[-1])["said"]
    return found


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_model_reads_what_it_would_at_the_server(server: str, gateway: Gateway, client: str) -> None:
    """Each text once and in order, and no picture twice: of a client's own there are ids, times and the tool's name."""
    own = await read(client, server, "none", [(tool, {}) for tool in TOOLS])
    found = await read(client, f"{gateway.url}/mcp", gateway.key, [(f"texts.{tool}", {}) for tool in TOOLS])

    assert [_OWN.sub("", each) for each in found] == [_OWN.sub("", each) for each in own]
    assert repr(TABLE)[1:-1] in found[0]
    assert re.findall("first|second|third", found[1]) == ["first", "second", "third"]
    assert found[1].count(PIXEL) + found[1].count("BinaryImage") == 1


@pytest.mark.parametrize("name", REVISIONS)
async def test_a_program_gets_what_it_would_at_the_server(server: str, gateway: Gateway, name: str) -> None:
    """Blocks and structure, in each generation and era of the TypeScript SDK."""
    try:
        folder = installed_clients(seconds=_INSTALL_SECONDS)
    except SuiteMissing as exc:
        pytest.skip(f"The clients cannot be had: {exc}")
    said = list[Any]()
    for url, key, prefix in ((server, "none", ""), (f"{gateway.url}/mcp", gateway.key, "texts.")):
        calls = json.dumps([(f"{prefix}{tool}", {}) for tool in TOOLS])
        async with node(folder, "run.mjs", name, url, key, "each", calls) as process:
            said.append(json.loads((await printed(process)).splitlines()[-1])["said"])

    own, found = said
    assert found == own
    assert [block["type"] for block in found[1]["content"]] == ["text", "text", "image", "text"]


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_model_reads_a_file_as_it_is(bed: TestBed, gateway: Gateway, client: str, tmp_path: Path) -> None:
    """Of a public server, which has the text and the picture in its structure as well."""
    server = next(each for each in SERVERS if each.module == "fs")
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "a.png").write_bytes(base64.b64decode(PIXEL))
    calls = [
        ("fs.read_text_file", {"path": f"{tmp_path}/a.txt"}),
        ("fs.read_media_file", {"path": f"{tmp_path}/a.png"}),
    ]
    with hosted(bed, "fs", server.command(tmp_path), server.environment(tmp_path)):
        wait_until_sync(
            lambda: is_listed(gateway, calls[0][0]), "the gateway serves the module", seconds=3 * PATIENCE_SECONDS
        )
        text, picture = await read(client, f"{gateway.url}/mcp", gateway.key, calls)

    assert repr(TEXT)[1:-1] in text
    assert "content\\" not in text
    assert picture.count(PIXEL) + picture.count("BinaryImage") == 1
