"""What a tool logs reaches the MCP client that has asked for it, of both eras, on the stream of its request."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp import Client

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_pair
from support.gateways.mcp_clients import mcp_client
from support.gateways.mcp_requests import asked, messages_of, request_of
from support.local_tools.log_teller import tell
from support.module_server import ModuleServer, serve
from support.waiting import wait_until
from toolfleet_cli.local.redis_server import redis_server

Json = dict[str, Any]
LEVEL = "io.modelcontextprotocol/logLevel"
INFO: Json = {"level": "info", "data": {"eggs": 3, "nothing": None}, "logger": "nest"}
QUIET: Json = {"level": "debug", "data": "quiet"}
LOUD: Json = {"level": "alert", "data": "fox"}
MESSAGES: Json = {"messages": [INFO, QUIET, LOUD]}


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("tell", tell, effect="read")
    with serve(module):
        yield module


@pytest.fixture(scope="module")
def gateways(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    """Two, with one key."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        bed = TestBed(url, (owls,), tmp_path_factory.mktemp("logs"))
        with gateway_pair(bed) as pair:
            yield pair


@pytest.fixture
async def here(gateways: tuple[Gateway, Gateway]) -> AsyncIterator[httpx.AsyncClient]:
    async with gateways[0].client() as client:
        yield client


class Heard:
    """What a client's callback was told."""

    def __init__(self) -> None:
        self.messages: list[types.LoggingMessageNotificationParams] = []

    async def __call__(self, params: types.LoggingMessageNotificationParams) -> None:
        self.messages.append(params)

    def take(self) -> list[tuple[str, Any]]:
        messages, self.messages = self.messages, []
        return [(each.level, each.data) for each in messages]


async def test_a_newer_client_hears_what_it_asks_for(gateways: tuple[Gateway, Gateway]) -> None:
    """By the level that its requests name; the messages have come before the result. Without a level there are none."""
    heard = Heard()
    async with mcp_client(gateways[0], logging_callback=heard, log_level="info") as client:
        assert client.session.server_capabilities is not None
        assert client.session.server_capabilities.logging is not None
        assert not (await client.call_tool("owls.tell", MESSAGES)).is_error
        assert heard.take() == [("info", INFO["data"]), ("alert", "fox")]
    async with mcp_client(gateways[0], logging_callback=heard) as client:
        assert not (await client.call_tool("owls.tell", MESSAGES)).is_error
        assert heard.take() == []


async def test_an_older_client_sets_its_level_once_for_all_gateways(
    gateways: tuple[Gateway, Gateway], owls: ModuleServer
) -> None:
    """It holds from its next call on, wherever that comes in, and can be changed; before there is none."""
    heard = Heard()
    async with mcp_client(gateways[0], "legacy", logging_callback=heard) as client:
        assert not (await client.call_tool("owls.tell", MESSAGES)).is_error
        assert heard.take() == []
        for level, wanted in (("error", ["fox"]), ("debug", [INFO["data"], "quiet", "fox"])):
            await _set_level(client, level)
            assert not (await client.call_tool("owls.tell", MESSAGES)).is_error
            assert [data for _, data in heard.take()] == wanted


async def test_a_level_is_kept_with_the_session(gateways: tuple[Gateway, Gateway], owls: ModuleServer) -> None:
    """Another gateway knows it; another session does not, and what is no level is refused."""
    owls.forget()
    async with gateways[0].client() as one, gateways[1].client() as two:
        session = await _session(one)
        other = await _session(one)
        wrong = await _old(one, session, "logging/setLevel", {"level": "deafening"})
        right = await _old(one, session, "logging/setLevel", {"level": "notice"})
        told = await _old(two, session, "tools/call", {"name": "owls.tell", "arguments": MESSAGES})
        silent = await _old(two, other, "tools/call", {"name": "owls.tell", "arguments": MESSAGES})
        homeless = await _old(one, None, "logging/setLevel", {"level": "info"})

    assert wrong[-1]["error"]["code"] == types.INVALID_PARAMS
    assert right[-1]["result"] == {}
    assert [each.get("method") for each in told] == ["notifications/message", None]
    assert told[0]["params"] == LOUD
    assert [each.get("method") for each in silent] == [None]
    assert homeless[-1]["error"]["code"] == types.INVALID_REQUEST
    assert [request.get("log_level") for request in owls.requests] == ["notice", None]


@pytest.mark.parametrize("extra", [{}, {"progressToken": "p"}], ids=["by itself", "beside progress"])
async def test_messages_are_as_the_module_wrote_them(here: httpx.AsyncClient, extra: Json) -> None:
    """On the request's own stream, before the result, whatever else is told there."""
    lines = ['{"progress": 0.5, "message": "half"}']
    call = {"name": "owls.tell", "arguments": {**MESSAGES, "lines": lines}}
    body, headers = request_of("tools/call", call, None, {LEVEL: "info", **extra})
    answer = await here.post("/mcp", json=body, headers=headers)
    *before, last = messages_of(answer.text)

    logged = [each["params"] for each in before if each["method"] == "notifications/message"]
    assert logged == [INFO, LOUD]
    assert last["result"]["content"][0]["text"] == "info"
    assert last["id"] == body["id"]


async def test_a_level_that_is_none_is_refused(here: httpx.AsyncClient, owls: ModuleServer) -> None:
    """-32602, and nothing is called."""
    owls.forget()
    for level in ("deafening", 7, ["info"]):
        answer = await asked(here, "tools/call", {"name": "owls.tell", "arguments": MESSAGES}, None, {LEVEL: level})
        assert answer["error"]["code"] == types.INVALID_PARAMS
    assert owls.requests == []


async def test_two_clients_never_hear_each_other(
    gateways: tuple[Gateway, Gateway], owls: ModuleServer, tmp_path: Path
) -> None:
    """Also while their calls are at work at the same time."""
    owls.forget()
    go = tmp_path / "go"

    async def heard_by(name: str, gateway: Gateway) -> set[str]:
        heard = Heard()
        async with mcp_client(gateway, logging_callback=heard, log_level="info") as client:
            messages = [{"level": "info", "data": name}] * 3
            await client.call_tool("owls.tell", {"messages": messages, "until": str(go)})
        return {data for _, data in heard.take()}

    calls = [asyncio.create_task(heard_by(f"owl{number}", gateways[number % 2])) for number in range(4)]
    await wait_until(lambda: len(owls.calls("tell")) == len(calls), "all are at work", seconds=30)
    go.touch()
    assert await asyncio.gather(*calls) == [{f"owl{number}"} for number in range(4)]


async def test_over_rest_it_is_an_event(here: httpx.AsyncClient, tmp_path: Path) -> None:
    """For calls with a `log_level`, while the stream is open; a level that is none is refused."""
    go, heard = tmp_path / "go", list[tuple[str, Json]]()
    call: Json = {"tool_name": "owls.tell", "arguments": {"again": INFO, "until": str(go)}, "log_level": "info"}
    wrong = await here.post("/calls", json={**call, "log_level": "deafening"})
    begun = (await here.post("/calls", json=call, headers={"Prefer": "respond-async"})).json()
    async with here.stream("GET", f"/calls/{begun['call_id']}/events") as events:
        async for line in events.aiter_lines():
            name, _, text = line.partition(": ")
            if name == "event":
                heard.append((text, {}))
            elif name == "data":
                heard[-1] = heard[-1][0], json.loads(text)
                go.touch()

    assert wrong.status_code == 400
    assert heard[0] == ("log", INFO)
    assert [kind for kind, _ in heard].count("end") == 1
    assert (heard[-1][0], heard[-1][1]["result"]) == ("end", "info")


async def _set_level(client: Client, level: Any) -> None:
    request = types.SetLevelRequest(params=types.SetLevelRequestParams(level=level))
    await client.session.send_request(request, types.EmptyResult)


async def _session(client: httpx.AsyncClient) -> str:
    facts = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": facts}
    answer = await client.post("/mcp", json=body, headers=_ACCEPT)
    return answer.headers["mcp-session-id"]


async def _old(client: httpx.AsyncClient, session: str | None, method: str, params: Json) -> list[Json]:
    """The messages that come back."""
    headers = {
        **_ACCEPT,
        "mcp-protocol-version": "2025-11-25",
        **({} if session is None else {"mcp-session-id": session}),
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await client.post("/mcp", json=body, headers=headers)
    is_stream = answer.headers["content-type"].startswith("text/event-stream")
    return messages_of(answer.text) if is_stream else [answer.json()]


_ACCEPT = {"accept": "application/json, text/event-stream"}
