"""Operators find calls that have ended, and see what happened to one."""

import itertools
from typing import Any

import pytest

from support.gateways.keyed_gateway import KeyedGateway
from support.waiting import wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")
PATH = "/operations/calls"


async def ended(fleet: ToolFleet, tool: str, arguments: dict[str, Any], user: str) -> str:
    """The id of a call that has ended."""
    caller = OWNER.model_copy(update={"user_id": user})
    result = await fleet.call(ToolCall(tool_name=tool, arguments=arguments), caller)
    assert result.audit.call_id
    return result.audit.call_id


async def is_indexed(gateway: KeyedGateway, user: str, calls: int) -> None:
    """Whoever asks sees what is half a second old; and a refused call's line is written beside its answer."""

    async def has_all() -> bool:
        found = (await gateway.get("vera", f"{PATH}?user={user}")).json()["found"]
        return bool(found == calls)

    await wait_until_answered(has_all, f"{calls} calls of {user}")


@pytest.mark.usefixtures("worker")
async def test_calls_are_found_and_told(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """By what they are, page by page; each with its attempts, and with when it waited and ran."""
    done = await ended(fleet, "owls.echo", {"text": "hoo"}, "otis")
    refused = await ended(fleet, "owls.none", {}, "otis")

    await is_indexed(gateway, "otis", 2)

    both = (await gateway.get("vera", f"{PATH}?user=otis&limit=1")).json()
    rest = (await gateway.get("vera", f"{PATH}?user=otis&limit=1&cursor={both['next']}")).json()
    wrong = (await gateway.get("vera", f"{PATH}?user=otis&outcome=refused")).json()
    story = (await gateway.get("vera", f"{PATH}/{done}")).json()

    assert [call["line"]["call_id"] for call in both["calls"] + rest["calls"]] == [refused, done]
    assert (both["found"], rest.get("next"), both["is_whole"]) == (2, None, True)
    assert [call["line"]["error_code"] for call in wrong["calls"]] == ["unknown_tool"]
    assert (story["state"], [attempt["outcome"] for attempt in story["attempts"]]) == ("done", ["success"])
    spans = {span["phase"]: span for span in story["spans"]}
    assert [phase for phase in spans if phase != "claimed"] == ["queued", "attempt", "module", "stored"]
    first = [
        spans[phase] for phase in ("queued", "claimed", "attempt") if phase in spans
    ]  # one may be claimed as it is fetched
    assert all(before["ends"] == after["begins"] for before, after in itertools.pairwise(first))
    assert (
        spans["attempt"]["begins"] <= spans["module"]["begins"] <= spans["module"]["ends"] <= spans["attempt"]["ends"]
    )
    assert spans["attempt"]["worker"] == story["lines"][0]["worker"]
    assert "hoo" not in str(story)


@pytest.mark.usefixtures("worker")
async def test_calls_of_a_conversation_are_found(gateway: KeyedGateway) -> None:
    """Whoever begins them over HTTP names it; the same name finds the approvals and wake-ups that belong to it."""
    body = {"tool_name": "owls.echo", "arguments": {"text": "hoo"}, "conversation_id": "nest-7"}
    made = [(await gateway.post("bob", "/calls", body)).json()["audit"]["call_id"] for _ in range(2)]

    async def are_found() -> bool:
        found = (await gateway.get("vera", f"{PATH}?conversation=nest-7")).json()
        return [call["line"]["call_id"] for call in found["calls"]] == made[::-1]

    await wait_until_answered(are_found, "both calls")
    assert (await gateway.get("vera", f"{PATH}?conversation=nest")).json()["calls"] == []
    named = {"conversation_id": "nest-7"}
    assert (await gateway.get("vera", "/approvals", params=named)).json()["approvals"] == []
    assert (await gateway.get("vera", "/operations/wake-ups", params=named)).json()["wakeups"] == []


@pytest.mark.usefixtures("worker")
async def test_calls_are_counted_and_their_fields_completed(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """The last hour has what has just ended."""
    for _ in range(2):
        await ended(fleet, "owls.echo", {"text": "hoo"}, "odo")
    await is_indexed(gateway, "odo", 2)

    charts = (await gateway.get("vera", f"{PATH}/charts?user=odo&steps=2")).json()
    values = (await gateway.get("vera", f"{PATH}/values?field=user&prefix=OD")).json()

    assert (charts["calls"], charts["outcomes"]) == (2, {"success": [0, 2]})
    assert charts["ran"]["p50"] >= 0
    assert values == {"values": [{"value": "odo", "calls": 2}]}
