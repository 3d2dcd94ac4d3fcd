"""Calls that ask: an MCP client answers, of both eras, whatever gateway its answer reaches."""

import json
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp.client.context import ClientRequestContext
from mcp.shared.exceptions import MCPError

from bed.fleet import Gateway
from support.gateways.mcp_clients import ERAS, Era, mcp_client
from support.gateways.mcp_requests import asked
from support.module_server import ModuleServer, Request

Json = dict[str, Any]
FORM = {"message": "Who are you?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
CAPABLE: Json = {"elicitation": {"form": {}}}
ASK: Json = {"name": "callers.ask", "arguments": {}}
ADA: Json = {"name": {"action": "accept", "content": {"name": "ada"}}}


async def ask(request: Request) -> Json:
    inputs = request.get("inputs")
    if inputs is None:
        requests = {"name": {"method": "elicitation/create", "params": FORM}}
        return {"input_required": {"requests": requests, "state": "asked"}, "effect_state": "none"}
    return {"success": True, "result": {"answer": inputs["responses"]["name"], "state": inputs["state"]}}


@pytest.fixture
def module() -> ModuleServer:
    module = ModuleServer("callers")
    module.add("ask", ask, effect="once")
    return module


@pytest.fixture
def clients(here: httpx.AsyncClient, there: httpx.AsyncClient) -> list[httpx.AsyncClient]:
    """One of each gateway."""
    return [here, there]


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_is_asked_and_the_call_goes_on(
    gateways: tuple[Gateway, Gateway], module: ModuleServer, era: Era
) -> None:
    """It is one call in two attempts, and its module has its own state back."""

    async def answer(_: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": params.message})

    async with mcp_client(gateways[0], era, elicitation_callback=answer) as client:
        result = await client.call_tool("callers.ask", {})

    assert result.structured_content == {
        "answer": {"action": "accept", "content": {"name": "Who are you?"}},
        "state": "asked",
    }
    assert len(set(module.call_ids("ask"))) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_who_cannot_be_asked_gets_the_modules_refusal(gateways: tuple[Gateway, Gateway], era: Era) -> None:
    """A client that declares nothing is asked nothing."""
    async with mcp_client(gateways[0], era) as client:
        assert (await client.call_tool("callers.ask", {})).is_error


async def test_the_answer_may_reach_another_gateway(clients: list[httpx.AsyncClient], module: ModuleServer) -> None:
    """The sealed state says which call it is; the same answer once more brings the same result."""
    here, there = clients
    first = (await asked(here, "tools/call", ASK, CAPABLE))["result"]
    again = {**ASK, "inputResponses": ADA, "requestState": first["requestState"]}
    results = [(await asked(one, "tools/call", again, CAPABLE))["result"] for one in (there, here)]

    assert (first["resultType"], first["inputRequests"]["name"]["method"]) == ("input_required", "elicitation/create")
    assert [each["structuredContent"]["answer"] for each in results] == [ADA["name"]] * 2
    assert len(module.calls("ask")) == 2


WRONG: list[tuple[str, Json]] = [
    ("another request's", {"arguments": {"a": 1}}),
    ("tampered with", {"requestState": "v1.AAAA"}),
    ("none", {"requestState": ""}),
]


@pytest.mark.parametrize("changed", [row[1] for row in WRONG], ids=[row[0] for row in WRONG])
async def test_a_state_that_was_not_given_is_refused(clients: list[httpx.AsyncClient], changed: Json) -> None:
    """-32602, and the call goes on waiting."""
    first = (await asked(clients[0], "tools/call", ASK, CAPABLE))["result"]
    again = {**ASK, "inputResponses": ADA, "requestState": first["requestState"], **changed}
    assert (await asked(clients[0], "tools/call", again, CAPABLE))["error"]["code"] == types.INVALID_PARAMS


async def test_what_is_not_answered_is_asked_again(clients: list[httpx.AsyncClient]) -> None:
    """An answer to something else is none."""
    first = (await asked(clients[0], "tools/call", ASK, CAPABLE))["result"]
    again = {**ASK, "inputResponses": {"other": {"action": "cancel"}}, "requestState": first["requestState"]}
    assert (await asked(clients[0], "tools/call", again, CAPABLE))["result"]["resultType"] == "input_required"


async def test_an_older_client_that_refuses_ends_its_call(gateways: tuple[Gateway, Gateway]) -> None:
    """An error of the client's is one of the call's."""

    async def refuse(_: ClientRequestContext, params: types.ElicitRequestParams) -> types.ErrorData:
        return types.ErrorData(code=types.INVALID_REQUEST, message=f"no: {json.dumps(params.message)}")

    async with mcp_client(gateways[0], "legacy", elicitation_callback=refuse) as client:
        with pytest.raises(MCPError, match="refused"):
            await client.call_tool("callers.ask", {})
