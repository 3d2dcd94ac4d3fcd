"""An MCP server's tools as a module's: real servers on the official SDK, both eras, standard streams and HTTP."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.hosts.mcp_server import KINDS, hosted_nest, hosted_server
from support.hosts.odd_server import Answer, odd_http, odd_program
from support.waiting import wait_until
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.functions.passed_methods import PassedError, passed_error

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_is_a_module(tmp_path: Path, kind: str) -> None:
    """Its tools are called, report progress, change, and are told when a call is over, in whatever way it speaks."""
    async with hosted_nest(kind, tmp_path) as served:
        assert (await served.call("echo", text="hoot")).result.startswith("echo: hoot")

        counted = await served.call("count")
        assert counted.success
        assert (0.25, "egg 1") in counted.progress

        late = await served.client.send("nest.wait", {}, seconds=1)
        assert (late.success, late.effect_state) == (False, "unknown")
        await wait_until(lambda: "cancelled" in served.noted(), "the server was told")
        assert (await served.settled("echo", text="on")).success

        hatched = await served.call("hatch")
        assert hatched.success
        await wait_until(
            lambda: any(name.startswith("nest.chick") for name in served.host.tools), "the new tool is served"
        )
        assert served.changes[-1] == set(served.host.tools)


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("is_new", [True, False])
async def test_a_call_is_sent_as_the_protocol_has_it(tmp_path: Path, transport: str, is_new: bool) -> None:
    """With what the version asks of every request, and a number that no other request of the session has."""
    kind = "complete" if is_new else "task"  # which is no word of older versions
    body = f'{{"jsonrpc": "2.0", "id": %d, "result": {{"content": [], "resultType": "{kind}"}}}}'
    with odd_http({"lay": Answer(200, body)}, is_new=is_new) as (odd, web):
        server = web if transport == "http" else odd_program(tmp_path, {"lay": body}, is_new=is_new)
        async with hosted_server(server, tmp_path / "notes") as served:
            for takes_input in (False, True):
                arguments = {"text": "hoot", "owl": None}
                assert (await served.client.send("nest.lay", arguments, takes_input=takes_input)).success
        seen = odd.messages if transport == "http" else json.loads((tmp_path / "messages").read_text())

    (listed, *_), (called, asking) = (
        [each for each in seen if each["method"] == f"tools/{word}"] for word in ("list", "call")
    )
    meta = called["params"].pop("_meta")
    assert meta.pop("progressToken") == called["id"]
    assert meta == listed.get("params", {}).get("_meta", {})
    assert bool(meta) == is_new
    assert called["params"] == {"name": "lay", "arguments": {"text": "hoot", "owl": None}}
    numbers = [each["id"] for each in seen if "id" in each]
    assert len(set(numbers)) == len(numbers)
    if is_new:  # whether the caller can be asked is declared with the call
        key = "io.modelcontextprotocol/clientCapabilities"
        assert set(asking["params"]["_meta"][key]) - set(meta[key]) == {"elicitation", "sampling", "roots"}


@pytest.mark.parametrize("kind", ["http", "http --old"])
async def test_a_server_that_asks_for_input_is_refused(tmp_path: Path, kind: str) -> None:
    """The call ends in a clear error, and nobody waits."""
    async with hosted_nest(kind, tmp_path) as served:
        asked = await served.call("ask")

        assert (asked.success, asked.effect_state) == (False, "unknown")
        assert any(words in str(asked.error) for words in ("input", "not supported"))


async def test_what_a_server_asks_is_passed_on_where_the_caller_can_be_asked(tmp_path: Path) -> None:
    """It is called again with the answer and its own state; a repeat of the question or of the answer calls it no more."""
    answer = {"who": {"action": "accept", "content": {"name": "Ada"}}}
    async with hosted_nest("http", tmp_path) as served:
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


@pytest.mark.parametrize(
    ("trust", "on_change", "effects"),
    [
        (
            {"trusted": True, "pin": True},
            "withheld",
            {"nest.echo": "read", "nest.wait": "idempotent", "nest.die": "once"},
        ),
        ({}, "shown", {"nest.echo": "once", "nest.wait": "once", "nest.die": "once"}),
    ],
    ids=["trusted and pinned", "neither"],
)
async def test_a_server_is_believed_as_far_as_it_is_trusted(
    tmp_path: Path, trust: dict[str, Any], on_change: str, effects: dict[str, str]
) -> None:
    """In what a repeat does, else every tool is for once; its manifest says what the fleet does with changed definitions."""
    async with hosted_nest("http", tmp_path, **trust) as served:
        found = {tool.name: tool.effect for tool in served.host.definitions if tool.listed}
        assert {name: found[name] for name in effects} == effects
        assert trust or set(found.values()) == {"once"}
        assert (await served.client.manifest()).on_change == on_change


async def test_names_that_are_not_admitted_are_mapped(tmp_path: Path) -> None:
    """Models see names that every provider takes, and the server its own."""
    async with hosted_nest("http", tmp_path) as served:
        (slash,) = (name for name in served.host.tools if name.startswith("nest.git_log_v2-"))
        assert (await served.call(slash)).result.startswith("git/log.v2:")
        assert {"nest.plain.dotted"} <= set(served.host.tools)
        assert (await served.client.manifest()).tools


async def test_what_an_answer_leaves_out_has_its_default(tmp_path: Path) -> None:
    """A result without a type is complete. A server's error comes with the failure: clients of the protocol can be told the same."""
    data: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
    answers: dict[str, dict[str, Any]] = {
        "bare": {"result": {"content": [{"type": "text", "text": "hoot"}]}},
        "wrong": {"error": {"code": -32021, "message": "it needs sampling", "data": data}},
    }
    bodies = {
        name: Answer(200, json.dumps({"jsonrpc": "2.0", "id": 0, **said}).replace('"id": 0', '"id": %d'))
        for name, said in answers.items()
    }
    with odd_http(bodies, is_new=True) as (_, server):
        async with hosted_server(server, tmp_path / "notes") as served:
            bare, wrong = await served.call("bare"), await served.call("wrong")

    assert (bare.success, bare.result) == (True, "hoot")
    assert (wrong.success, wrong.error) == (False, "nest.wrong failed: it needs sampling")
    assert passed_error(wrong.result) == PassedError(-32021, "it needs sampling", data)
