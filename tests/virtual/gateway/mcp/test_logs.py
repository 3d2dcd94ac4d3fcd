"""What a tool logs reaches the MCP client that has asked for it, of both eras, on the stream of its request."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp import Client

from bed.fleet import Gateway, until
from support.gateways.mcp_clients import mcp_client
from support.gateways.mcp_requests import asked, messages_of, request_of
from support.gateways.old_sessions import TAKES, OldSession
from support.local_tools.log_teller import tell
from support.module_server import ModuleServer

Json = dict[str, Any]
LEVEL = "io.modelcontextprotocol/logLevel"
INFO: Json = {"level": "info", "data": {"eggs": 3, "nothing": None}, "logger": "nest"}
QUIET: Json = {"level": "debug", "data": "quiet"}
LOUD: Json = {"level": "alert", "data": "fox"}
MESSAGES: Json = {"messages": [INFO, QUIET, LOUD]}
SET_LEVEL: Json = {"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel"}


@pytest.fixture
def owls() -> ModuleServer:
    module = ModuleServer("owls")
    module.add("tell", tell, effect="read")
    return module


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
    gateways: tuple[Gateway, Gateway],
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


async def test_a_level_is_kept_with_the_session(
    here: httpx.AsyncClient, there: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """Another gateway knows it; another session does not, and what is no level is refused."""
    session, other = [await OldSession.open(here, "/mcp") for _ in range(2)]
    wrong = await session.ask(here, "logging/setLevel", level="deafening")
    right = await session.ask(here, "logging/setLevel", level="notice")
    told, silent = await _told(there, session), await _told(there, other)
    homeless = await here.post("/mcp", json={**SET_LEVEL, "params": {"level": "info"}}, headers=TAKES)

    assert wrong["error"]["code"] == types.INVALID_PARAMS
    assert right["result"] == {}
    assert [each.get("method") for each in told] == ["notifications/message", None]
    assert told[0]["params"] == LOUD
    assert [each.get("method") for each in silent] == [None]
    assert messages_of(homeless.text)[0]["error"]["code"] == types.INVALID_REQUEST
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
    for level in ("deafening", 7, ["info"]):
        answer = await asked(here, "tools/call", {"name": "owls.tell", "arguments": MESSAGES}, None, {LEVEL: level})
        assert answer["error"]["code"] == types.INVALID_PARAMS
    assert owls.requests == []


async def test_two_clients_never_hear_each_other(
    gateways: tuple[Gateway, Gateway], owls: ModuleServer, tmp_path: Path
) -> None:
    """Also while their calls are at work at the same time."""
    go = tmp_path / "go"

    async def heard_by(name: str, gateway: Gateway) -> set[str]:
        heard = Heard()
        async with mcp_client(gateway, logging_callback=heard, log_level="info") as client:
            messages = [{"level": "info", "data": name}] * 3
            await client.call_tool("owls.tell", {"messages": messages, "until": str(go)})
        return {data for _, data in heard.take()}

    calls = [asyncio.create_task(heard_by(f"owl{number}", gateways[number % 2])) for number in range(4)]
    await until(lambda: len(owls.calls("tell")) == len(calls), "all are at work")
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


async def _told(client: httpx.AsyncClient, session: OldSession) -> list[Json]:
    """The messages that a call brings."""
    answer = await session.post(client, "tools/call", name="owls.tell", arguments=MESSAGES)
    return messages_of(answer.text)
