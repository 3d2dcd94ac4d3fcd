"""Requests of MCP clients that are wrong: each has its one clear answer, as the protocol names it, and costs nobody else anything."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from support.gateways.gateway_process import Gateway
from support.gateways.mcp_requests import TASKS, VERSION, asked, request_of
from support.module_server import ModuleServer
from support.waiting import wait_until
from toolfleet_gateway.mcp.calls import CONVERSATION_ID, RUN_ID

Json = dict[str, Any]
ECHO = {"name": "owls.echo", "arguments": {"text": "hoo"}}
BODY, HEADERS = request_of("tools/call", ECHO)


def body(**changed: Any) -> bytes:
    """The body of a call with other members; those that are `...` are left out."""
    return json.dumps({name: value for name, value in {**BODY, **changed}.items() if value is not ...}).encode()


def params(**changed: Any) -> bytes:
    """The same with other parameters."""
    said = {**BODY["params"], **changed}
    return body(params={name: value for name, value in said.items() if value is not ...})


def meta(**changed: Any) -> bytes:
    """The same with another `_meta`; names of the protocol without their prefix."""
    said = {**BODY["params"]["_meta"]}
    for name, value in changed.items():
        full = f"io.modelcontextprotocol/{name}" if name != "progressToken" else name
        said[full] = value
    return params(_meta={name: value for name, value in said.items() if value is not ...})


CALL_BODY = body()
DEEP = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + b"[" * 5000 + b"]" * 5000 + b"}"
KEY = "toolfleet/idempotencyKey"

WRONG: list[tuple[str, bytes, dict[str, str], int, int | None]] = [
    ("no JSON", b"{", {}, 400, -32700),
    ("too deep", DEEP, {}, 400, -32700),
    ("a batch", b"[" + CALL_BODY + b"]", {}, 400, -32600),
    ("a text", b'"tools/call"', {}, 400, -32600),
    ("a response", b'{"jsonrpc":"2.0","id":1,"result":{}}', {}, 400, -32600),
    ("no id that is one", body(id=[1]), {}, 400, -32600),
    ("another JSON-RPC", body(jsonrpc="1.0"), {}, 400, -32600),
    ("an unknown version", meta(protocolVersion="2030-01-01"), {"mcp-protocol-version": "2030-01-01"}, 400, -32022),
    ("versions that differ", meta(protocolVersion="2030-01-01"), {}, 400, -32020),
    ("methods that differ", CALL_BODY, {"mcp-method": "tools/list"}, 400, -32020),
    ("names that differ", CALL_BODY, {"mcp-name": "owls.nap"}, 400, -32020),
    ("an unknown method", body(method="tools/drop"), {"mcp-method": "tools/drop"}, 404, -32601),
    ("no capabilities", meta(clientCapabilities=...), {}, 400, -32602),
    ("no envelope", params(_meta=...), {}, 400, -32602),
    ("arguments that are none", params(arguments=["hoo"]), {}, 400, -32602),
    ("no name", params(name=...), {}, 400, None),
    ("a key that is none", params(_meta={**BODY["params"]["_meta"], KEY: 7}), {}, 400, -32602),
    ("too long a key", params(_meta={**BODY["params"]["_meta"], KEY: "k" * 257}), {}, 400, -32602),
    ("a run that is none", params(_meta={**BODY["params"]["_meta"], RUN_ID: ["one"]}), {}, 400, -32602),
    ("an empty conversation", params(_meta={**BODY["params"]["_meta"], CONVERSATION_ID: ""}), {}, 400, -32602),
    ("a token that is none", meta(progressToken=[1]), {}, 400, -32602),
]


@pytest.mark.parametrize(
    ("sent", "headers", "status", "code"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
async def test_a_wrong_request_has_one_clear_answer(
    one: Gateway, owls: ModuleServer, sent: bytes, headers: dict[str, str], status: int, code: int | None
) -> None:
    """And calls nothing."""
    owls.forget()
    async with one.client() as client:
        answer = await client.post("/mcp", content=sent, headers={**HEADERS, **headers})

    assert answer.status_code == status, answer.text
    assert code is None or answer.json()["error"]["code"] == code
    assert owls.requests == []


async def test_the_transport_is_held_to(one: Gateway) -> None:
    """GET is no method of it, and who takes no JSON or no stream gets nothing."""
    async with one.client() as client:
        got = await client.get("/mcp", headers={"mcp-protocol-version": VERSION})
        json_only = await client.post("/mcp", json=BODY, headers={**HEADERS, "accept": "application/json"})
        none = await client.post("/mcp", json=BODY, headers={**HEADERS, "accept": "text/html"})
        told = await client.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/x"}, headers=HEADERS)

    assert (got.status_code, json_only.status_code, none.status_code) == (405, 406, 406)
    assert (told.status_code, told.content) == (202, b"")


async def test_nobody_comes_in_without_a_key(one: Gateway) -> None:
    """401, with the way in; and a module that the caller does not reach is one that there is not."""
    async with httpx.AsyncClient(base_url=one.url, trust_env=False) as client:
        refused = await client.post("/mcp", json=BODY, headers=HEADERS)
    async with one.client() as client:
        unknown = await client.post("/mcp/nobody", json=BODY, headers=HEADERS)

    assert (refused.status_code, refused.headers["www-authenticate"].startswith("Bearer ")) == (401, True)
    assert unknown.status_code == 404


@pytest.mark.parametrize("cursor", ["nonsense", "x" * 5000])
async def test_a_cursor_that_nobody_gave(one: Gateway, cursor: str) -> None:
    """-32602."""
    async with one.client() as client:
        assert (await asked(client, "tools/list", {"cursor": cursor}))["error"]["code"] == -32602


async def key_of(client: httpx.AsyncClient, user_id: str) -> str:
    """A key of somebody else's."""
    wanted = {"user_id": user_id, "permission": "user", "allowed_modules": "*"}
    answer = await client.post("/operations/keys", json=wanted)
    assert answer.is_success, answer.text
    text: str = answer.json()["text"]
    return text


async def test_tasks_and_calls_of_others_look_like_unknown_ones(one: Gateway) -> None:
    """Letter for letter, but for what was asked for."""
    nap = {"name": "owls.nap", "arguments": {"seconds": 60}}
    async with one.client() as owner:
        async with one.client(await key_of(owner, "bob")) as bob:
            task = (await asked(owner, "tools/call", nap, TASKS))["result"]["taskId"]
            for method in ("tasks/get", "tasks/cancel", "tasks/update"):
                foreign = await asked(bob, method, {"taskId": task}, TASKS)
                unknown = await asked(bob, method, {"taskId": "00000000-0000-4000-8000-000000000000"}, TASKS)
                assert foreign["error"] == unknown["error"]
            status = await asked(bob, "tools/call", {"name": "call_status", "arguments": {"call_id": task}})
            assert status["result"]["isError"]
        assert (await asked(owner, "tasks/get", {"taskId": task}, TASKS))["result"]["status"] == "working"
        await asked(owner, "tasks/cancel", {"taskId": task}, TASKS)


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
OLD = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}


async def test_a_session_is_good_for_who_opened_it_where_that_was(one: Gateway, two: Gateway) -> None:
    """At any gateway. For others, at another endpoint and after its end it is unknown: 404, and a client opens another one."""
    async with one.client() as owner:
        key, other = await key_of(owner, "ada"), await key_of(owner, "eve")
    async with one.client(key) as here, two.client(key) as there, one.client(other) as eve:
        opened = await here.post("/mcp", json=INITIALIZE, headers=OLD)
        session = {**OLD, "mcp-session-id": opened.headers["mcp-session-id"]}
        mine = await there.post("/mcp", json=PING, headers=session)
        elsewhere = await here.post("/mcp/owls", json=PING, headers=session)
        invented = await here.post("/mcp", json=PING, headers={**OLD, "mcp-session-id": "x" * 300})
        foreign = await eve.post("/mcp", json=PING, headers=session)
        ended = await there.delete("/mcp", headers=session)
        after = await here.post("/mcp", json=PING, headers=session)

    assert (opened.status_code, mine.status_code, ended.status_code) == (200, 200, 204)
    assert [answer.status_code for answer in (elsewhere, invented, foreign, after)] == [404] * 4


async def test_ids_that_repeat_are_each_answered(one: Gateway) -> None:
    """A client that counts wrong mixes up its own answers only."""
    async with one.client() as client:
        answers = await asyncio.gather(*(client.post("/mcp", json=BODY, headers=HEADERS) for _ in range(10)))
    assert {answer.json()["id"] for answer in answers} == {BODY["id"]}


async def test_a_client_that_cancels_everything_costs_nobody_anything(one: Gateway, owls: ModuleServer) -> None:
    """Nothing of its calls is left, and others are served."""
    async with one.client() as client:
        nap = {"name": "owls.nap", "arguments": {"seconds": 60}}
        calls = [asyncio.create_task(asked(client, "tools/call", nap)) for _ in range(50)]
        await wait_until(lambda: owls.running >= 10, "some of its calls run, and others are on their way")
        for call in calls:
            call.cancel()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError}
        assert (await asked(client, "tools/call", ECHO))["result"]["structuredContent"] == {"text": "hoo"}
        await wait_until(lambda: not owls.running, "nothing of its calls is left")
