"""Streams of what happens to approvals: each key's own, at any gateway, with nothing lost when one is killed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bed.fleet import Bed
from support.fleet import SIGNING_KEY
from support.gateways.event_streams import Event, EventReader, streaming
from support.gateways.keyed_gateway import KeyedGateway, people_of
from support.module_server import ModuleServer
from support.owls import echo
from toolfleet import Approver, ToolFleet

EVENTS = "/approvals/events"
BOSS, OTHER = Approver("command line", "boss", "owner"), Approver("command line", "other", "owner")
WAITS: dict[str, Any] = {"name": "human_in_the_loop", "approve_tools": ["bank.pay"], "expires_seconds": 30}
AGENTS = {"strict": {"middleware": [WAITS]}, "careful": {"middleware": [{**WAITS, "quorum": 2}]}}


@pytest.fixture
async def gateway(bed: Bed) -> AsyncIterator[KeyedGateway]:
    """Of a fleet with a worker, a beat and people who have keys."""
    module = ModuleServer("bank")
    module.add("pay", echo, effect="once")
    bed.given.update(agents=AGENTS, signing_key=SIGNING_KEY)
    await bed.serve(module)
    await bed.worker()
    await bed.beat()
    with people_of(bed.settings) as keys:
        yield keyed(await bed.gateway(), keys)


@pytest.fixture
async def fleet(bed: Bed, gateway: KeyedGateway) -> ToolFleet:
    del gateway  # it knows the module
    return await bed.agent()


def keyed(gateway: Any, keys: Any) -> KeyedGateway:
    """Return a gateway of the bed with its people's keys: all that is asked of it is its URL."""
    return KeyedGateway(gateway, keys)


async def ask(gateway: KeyedGateway, who: str, agent: str = "strict") -> str:
    """Make a call that waits for people, and return its id."""
    body = {"tool_name": "bank.pay", "arguments": {"n": 1}, "agent": agent}
    answer = await gateway.post(who, "/calls", body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["state"] == "waiting_approval"
    return str(answer.json()["call_id"])


async def told(reader: EventReader, *kinds: str, of: str | None = None) -> list[Event]:
    """The next events, which are of these kinds."""
    found = [await reader.next() for _ in kinds]
    assert [each.kind for each in found] == list(kinds)
    if of is not None:
        assert {each.data["approval"]["id"] for each in found} == {of}
    return found


async def test_each_step_is_told(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """Asked, voted, edited and approved; rejected; withdrawn; and what nobody has decided in time."""
    async with streaming(gateway, "vera", EVENTS) as stream:
        await told(stream, "following")
        paid = await ask(gateway, "eve", "careful")
        await told(stream, "asked", of=paid)
        seen = (await fleet.approvals.show(paid)).request.binding
        await fleet.approvals.approve(paid, BOSS, seen=seen)
        (voted,) = await told(stream, "voted", of=paid)
        assert voted.data["approval"]["missing"] == 1
        edited = await fleet.approvals.approve(paid, OTHER, arguments={"n": 2}, seen=seen)
        await told(stream, "edited", "voted", of=paid)
        await fleet.approvals.approve(paid, BOSS, seen=edited.request.binding)
        (approved,) = await told(stream, "approved", of=paid)
        assert (approved.data["approval"]["state"], approved.data["approval"]["arguments"]) == ("approved", {"n": 2})

        refused = await ask(gateway, "eve")
        await fleet.approvals.reject(refused, BOSS, reason="No.")
        (_, rejected) = await told(stream, "asked", "rejected", of=refused)
        assert rejected.data["approval"]["journal"][-1]["reason"] == "No."
        left = await ask(gateway, "eve")
        await gateway.delete("eve", f"/calls/{left}")
        (_, withdrawn) = await told(stream, "asked", "withdrawn", of=left)
        assert withdrawn.data["approval"]["state"] == "withdrawn"
        late = await ask(gateway, "eve")
        await told(stream, "asked", "expired", of=late)


async def test_each_hears_of_what_is_theirs(gateway: KeyedGateway) -> None:
    """Whoever may decide and whoever asks; a user without a right hears of none, and nobody without a key of anything."""
    async with contextlib.AsyncExitStack() as stack:
        people = ("ada", "eve", "bob")
        readers = {who: await stack.enter_async_context(streaming(gateway, who, EVENTS)) for who in people}
        for reader in readers.values():
            await told(reader, "following")
        eves, bobs = await ask(gateway, "eve"), await ask(gateway, "bob")
        await told(readers["ada"], "asked", of=eves)
        await told(readers["ada"], "asked", of=bobs)
        await told(readers["eve"], "asked", of=eves)
        await told(readers["bob"], "asked", of=bobs)
    assert (await gateway.get("nobody", EVENTS)).status_code == 401
    wrong = await gateway.get("ada", EVENTS, headers={"last-event-id": "yesterday"})
    assert wrong.status_code in {400, 422}


async def test_a_killed_gateway_loses_no_event(bed: Bed, gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """Another one goes on behind the last id that the client has; what no stream has any more is said to be lost."""
    mortal = await bed.gateway()
    async with streaming(keyed(mortal, gateway.keys), "vera", EVENTS) as stream:
        await told(stream, "following")
        asked = await ask(gateway, "eve")
        (last,) = await told(stream, "asked", of=asked)
        mortal.site.kill()
    await fleet.approvals.reject(asked, BOSS)
    async with streaming(gateway, "vera", EVENTS, last=last.id) as stream:
        await told(stream, "following")
        await told(stream, "rejected", of=asked)
    async with streaming(gateway, "vera", EVENTS, last="1-1") as stream:
        await told(stream, "events_lost")


async def test_a_frozen_redis_loses_no_event(bed: Bed, gateway: KeyedGateway) -> None:
    """The stream stays open, and goes on when Redis does; what is decided meanwhile is refused, or told."""
    call_id = await ask(gateway, "eve")
    async with streaming(gateway, "vera", EVENTS) as stream:
        await told(stream, "following")
        bed.redis.freeze()
        deciding = asyncio.create_task(gateway.post("ada", f"/approvals/{call_id}", {"decision": "reject"}))
        await asyncio.wait({deciding}, timeout=10)
        bed.redis.thaw()
        decided = await deciding
        if decided.status_code != 200:
            assert decided.status_code == 503, decided.text
            again = await gateway.post("ada", f"/approvals/{call_id}", {"decision": "reject"})
            assert again.status_code in {200, 409}, again.text  # the first may have been taken
        await told(stream, "rejected", of=call_id)


async def test_a_calls_own_stream_says_what_people_decide(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """That it waits, what they have decided, and its end; whoever comes again hears of what they know already no more."""
    call_id = await ask(gateway, "eve")
    path = f"/calls/{call_id}/events"
    async with streaming(gateway, "eve", path) as stream:
        waits = await stream.next()
        assert (waits.kind, waits.data["state"], waits.data["id"]) == ("approval", "waiting", call_id)
    async with streaming(gateway, "eve", path, last=waits.id) as stream:
        await fleet.approvals.approve(call_id, BOSS, reason="Go.")
        decided = await stream.next()
        assert (decided.kind, decided.data["state"]) == ("approval", "approved")
        assert decided.data["journal"][-1]["reason"] == "Go."
        ended = await stream.next()
        while ended.kind == "progress":
            ended = await stream.next()
        assert (ended.kind, ended.data["success"]) == ("end", True)
