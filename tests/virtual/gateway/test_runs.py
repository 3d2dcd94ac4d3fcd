"""Runs and conversations that clients of a gateway name: what an agent's profile limits is counted by these."""

from collections.abc import AsyncIterator

import pytest

from bed.fleet import Bed
from support.gateways.keyed_gateway import KeyedGateway, keyed
from support.gateways.mcp_requests import asked
from support.module_server import ModuleServer
from toolfleet_gateway.mcp.calls import CONVERSATION_ID, RUN_ID

AGENTS = {
    "brief": {
        "middleware": [
            {"name": "tool_call_limit", "run_limit": 1, "tools": ["owls.echo"]},
            {"name": "tool_call_limit", "thread_limit": 1, "tools": ["owls.nap"]},
        ]
    }
}
NAP = {"seconds": 0}


@pytest.fixture
async def gateway(bed: Bed, owls: ModuleServer) -> AsyncIterator[KeyedGateway]:
    """A gateway whose callers are all of one agent."""
    bed.given |= {"agents": AGENTS, "default_agent": "brief"}
    await bed.serve(owls)
    await bed.worker()
    with keyed(await bed.gateway(), bed.settings) as gateway:
        yield gateway


async def test_a_rest_client_names_run_and_conversation(gateway: KeyedGateway) -> None:
    """In the call's body; over the limit it is a problem that no repeat changes."""
    echo, nap = {"tool_name": "owls.echo"}, {"tool_name": "owls.nap", "arguments": NAP}
    said = [
        await gateway.post("bob", "/calls", body)
        for body in (
            {**echo, "run_id": "one"},
            {**echo, "run_id": "two"},
            {**echo, "run_id": "one"},
            echo,
            {**nap, "conversation_id": "talk"},
            {**nap, "conversation_id": "talk", "run_id": "two"},
        )
    ]
    assert [answer.status_code for answer in said] == [200, 200, 429, 429, 200, 429]
    refusal = said[2].json()
    assert (refusal["error_code"], refusal["effect_state"], refusal["retryable"]) == ("rate_limited", "none", False)
    assert "run_id" in said[3].json()["detail"]
    path, run = "/tools/owls.echo/why", {"run_id": "one", "conversation_id": "talk"}
    why = [(await gateway.get("bob", path, params=params)).json() for params in (run, {"run_id": "three"})]
    assert [each["is_allowed"] for each in why] == [False, True]
    assert "Run 'one' has made 1 of its 1 calls of this kind." in [rule["says"] for rule in why[0]["rules"]]


async def test_an_mcp_client_names_run_and_conversation(gateway: KeyedGateway) -> None:
    """In `_meta` of its call; over the limit its model reads what to do."""
    echo, nap = {"name": "owls.echo", "arguments": {}}, {"name": "owls.nap", "arguments": NAP}
    wanted = [
        (echo, {RUN_ID: "one"}),
        (echo, {RUN_ID: "one"}),
        (echo, {}),
        (nap, {CONVERSATION_ID: "talk"}),
        (nap, {CONVERSATION_ID: "talk"}),
    ]
    async with gateway.client("eve") as client:
        said = [await asked(client, "tools/call", params, meta=meta) for params, meta in wanted]
    results = [each["result"] for each in said]
    assert [bool(result.get("isError")) for result in results] == [False, True, True, False, True]
    assert "go on without it" in results[1]["content"][0]["text"]
    assert results[1]["_meta"]["toolfleet/error"]["error_code"] == "rate_limited"
