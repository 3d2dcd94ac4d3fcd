"""An MCP server's tools as a module's: real servers on the official SDK, both eras, standard streams and HTTP."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.hosts import mcp_server
from support.hosts.bare_server import bare_server
from support.hosts.mcp_server import HostedServer, hosted_server, http_nest, stdio
from support.waiting import wait_until
from toolfleet_modules.hosts.mcp.options import HttpServer, StdioServer
from toolfleet_registry.contracts.inputs.messages import CallInputs
from toolfleet_registry.functions.passed_errors import PassedError, passed_error

pytestmark = pytest.mark.asyncio

MIRROR = Path(mcp_server.__file__).parent / "mirror_server.py"
KINDS = ["stdio", "stdio --old", "http", "http --old"]


@asynccontextmanager
async def nest(kind: str, folder: Path, **options: Any) -> AsyncGenerator[HostedServer]:
    """The nest, as the module `nest`."""
    transport, *words = kind.split()
    notes = folder / "notes"
    async with AsyncExitStack() as stack:
        server: StdioServer | HttpServer
        if transport == "stdio":
            server = stdio(notes, *words)
        else:
            server, _ = await stack.enter_async_context(http_nest(notes, *words))
        yield await stack.enter_async_context(hosted_server(server, notes, **options))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_is_a_module(tmp_path: Path, kind: str) -> None:
    """Its tools are called, report progress, change, and are told when a call is over, in whatever way it speaks."""
    async with nest(kind, tmp_path) as served:
        assert (await served.call("echo", text="hoot")).result.startswith("echo: hoot")

        counted = await served.call("count")
        assert counted.success
        assert (0.25, "egg 1") in counted.progress

        late = await served.client.send("nest.wait", {}, seconds=2)
        assert (late.success, late.effect_state) == (False, "unknown")
        await wait_until(lambda: "cancelled" in served.noted(), "the server was told")
        assert (await served.settled("echo", text="on")).success

        hatched = await served.call("hatch")
        assert hatched.success
        await wait_until(
            lambda: any(name.startswith("nest.chick") for name in served.host.tools), "the new tool is served"
        )
        assert served.changes[-1] == set(served.host.tools)


@pytest.mark.parametrize("words", [[], ["old"]])
async def test_a_call_is_sent_as_the_protocol_has_it(tmp_path: Path, words: list[str]) -> None:
    """With what the version asks of every request, and a number that no other request of the session has."""
    server = StdioServer((sys.executable, str(MIRROR), *words))
    async with hosted_server(server, tmp_path / "notes") as served:
        assert (await served.call("mirror", text=None)).success
        mirrored = await served.call("mirror", text="hoot")
        assert mirrored.success
        seen = mirrored.result["seen"]

    (listed, *_), (*_, called) = (
        [each for each in seen if each["method"] == f"tools/{word}"] for word in ("list", "call")
    )
    meta = called["params"].pop("_meta")
    assert meta.pop("progressToken") == called["id"]
    assert meta == listed.get("params", {}).get("_meta", {})
    assert bool(meta) == (not words)
    assert called["params"] == {"name": "mirror", "arguments": {"text": "hoot"}}
    numbers = [each["id"] for each in seen if "id" in each]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("kind", ["stdio", "stdio --old"])
async def test_a_server_that_asks_for_input_is_refused(tmp_path: Path, kind: str) -> None:
    """The call ends in a clear error, and nobody waits."""
    async with nest(kind, tmp_path) as served:
        asked = await served.call("ask")

        assert (asked.success, asked.effect_state) == (False, "unknown")
        assert any(words in str(asked.error) for words in ("input", "not supported"))


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_what_a_server_asks_is_passed_on_where_the_caller_can_be_asked(tmp_path: Path, kind: str) -> None:
    """It is called again with the answer and its own state; a repeat of the question or of the answer calls it no more."""
    answer = {"who": {"action": "accept", "content": {"name": "Ada"}}}
    async with nest(kind, tmp_path) as served:
        asked = [await served.client.send("nest.ask", {}, call_id="call-1", takes_input=True) for _ in range(2)]
        request = asked[0].requests["who"]
        assert (request["method"], request["params"]["message"]) == ("elicitation/create", "Who?")
        assert asked[1].requests == asked[0].requests
        inputs = CallInputs(round=1, responses=answer, state=asked[1].state)
        for _ in range(2):
            told = await served.client.send("nest.ask", {}, call_id="call-1", takes_input=True, inputs=inputs)
            assert (told.success, told.result) == (True, "Hello Ada, s")
        assert served.noted().count("ask ") == 2

        odd = CallInputs(round=1, responses=answer, state="of somebody else")
        refused = await served.client.send("nest.ask", {}, call_id="call-2", takes_input=True, inputs=odd)
        assert (refused.success, refused.effect_state) == (False, "none")


async def test_a_server_is_told_whether_the_caller_can_be_asked(tmp_path: Path) -> None:
    """Its client declares it with the call."""
    key, seen = "io.modelcontextprotocol/clientCapabilities", list[set[str]]()
    async with hosted_server(StdioServer((sys.executable, str(MIRROR))), tmp_path / "notes") as served:
        for takes_input in (False, True):
            mirrored = await served.client.send("nest.mirror", {}, takes_input=takes_input)
            seen.append(set(mirrored.result["seen"][-1]["params"]["_meta"][key]))
    assert seen[1] - seen[0] == {"elicitation", "sampling", "roots"}


async def test_results_keep_what_they_are(tmp_path: Path) -> None:
    """Structured content stands beside the blocks, media are files that say their types, and an error is a failure in words."""
    async with nest("stdio", tmp_path) as served:
        weighed = await served.call("weigh")
        assert (weighed.result["structured"], weighed.files[0].media_type) == ({"grams": 12}, "image/png")

        drawn = await served.call("draw")
        assert [part["type"] for part in drawn.result["content"]] == [
            "text",
            "image",
            "audio",
            "resource",
            "resource_link",
        ]
        assert drawn.result["content"][1]["file"].startswith("image 1 (image/png")
        assert drawn.result["content"][3] == {
            "type": "resource",
            "uri": "nest://egg",
            "mimeType": "text/plain",
            "text": "egg",
        }
        assert drawn.result["content"][4]["uri"] == "nest://owl"
        assert [(file.kind, file.media_type) for file in drawn.files] == [
            ("image", "image/png"),
            ("audio", "audio/wav"),
        ]

        failed = await served.call("fail", text="eggs")
        assert (failed.success, failed.error, failed.effect_state) == (False, "no eggs", "unknown")


@pytest.mark.parametrize(("pin", "on_change"), [(False, "shown"), (True, "withheld")])
async def test_a_server_that_changes_is_watched_or_pinned(tmp_path: Path, *, pin: bool, on_change: str) -> None:
    """Its manifest says what the fleet does with changed definitions."""
    async with nest("stdio", tmp_path, pin=pin) as served:
        assert (await served.client.manifest()).on_change == on_change


async def test_names_that_are_not_admitted_are_mapped(tmp_path: Path) -> None:
    """Models see names that every provider takes, and the server its own."""
    async with nest("stdio", tmp_path) as served:
        (slash,) = (name for name in served.host.tools if name.startswith("nest.git_log_v2-"))
        assert (await served.call(slash)).result.startswith("git/log.v2:")
        assert {"nest.plain.dotted"} <= set(served.host.tools)
        assert (await served.client.manifest()).tools


@pytest.mark.fleet
async def test_only_servers_that_are_trusted_say_what_a_repeat_does(tmp_path: Path) -> None:
    """Else every tool is for once."""
    async with nest("stdio", tmp_path, trusted=True) as trusted:
        effects = {tool.name: tool.effect for tool in trusted.host.definitions}
        assert (effects["nest.echo"], effects["nest.wait"], effects["nest.die"]) == ("read", "idempotent", "once")
    async with nest("stdio", tmp_path) as untrusted:
        assert {tool.effect for tool in untrusted.host.definitions if tool.listed} == {"once"}


async def test_calls_share_a_session(tmp_path: Path) -> None:
    """Several at once, and one that hangs holds up none."""
    async with nest("stdio", tmp_path) as served:
        waiting = asyncio.ensure_future(served.client.send("nest.wait", {}, seconds=20))
        results = await asyncio.gather(*(served.call("echo", text=str(n)) for n in range(50)))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        assert {result.result.rpartition(" ")[2] for result in results} == {str(served.pids()[0])}
        assert [result.result.split()[1] for result in results] == [str(n) for n in range(50)]


async def test_a_result_that_does_not_say_its_type_is_complete(tmp_path: Path) -> None:
    """The protocol has clients assume so, and the call is a success."""
    async with asyncio.timeout(30), bare_server() as server, hosted_server(server, tmp_path / "notes") as served:
        called = await served.call("bare")

    assert (called.success, called.result) == (True, "hoot")


async def test_a_servers_error_comes_with_the_failure(tmp_path: Path) -> None:
    """Whoever passes the call's end on to clients of the protocol can tell them the same."""
    async with asyncio.timeout(30), bare_server() as server, hosted_server(server, tmp_path / "notes") as served:
        called = await served.call("wrong")

    assert (called.success, called.error) == (False, "nest.wrong failed: it needs sampling")
    assert passed_error(called.result) == PassedError(
        -32021, "it needs sampling", {"requiredCapabilities": {"sampling": {}}}
    )
