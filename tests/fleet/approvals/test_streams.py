"""Streams of what happens to approvals: each key's own, at any gateway, with nothing lost when one is killed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from support.fleet import SIGNING_KEY, TestBed
from support.gateways.event_streams import Event, EventReader, streaming
from support.gateways.gateway_process import gateway_process
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.waiting import wait_until_answered
from toolfleet import Approver, ToolFleet
from toolfleet_tasks.approvals.settling import settle_due
from toolfleet_tasks.client.session import Session

EVENTS = "/approvals/events"
BOSS = Approver("command line", "boss", "owner")
OTHER = Approver("command line", "other", "owner")
WAITS: dict[str, Any] = {"name": "human_in_the_loop", "approve_tools": ["bank.pay"], "expires_seconds": 600}
AGENTS = {
    "strict": {"middleware": [WAITS]},
    "careful": {"middleware": [{**WAITS, "quorum": 2}]},
    "hasty": {"middleware": [{**WAITS, "expires_seconds": 3}]},
}


@dataclass(frozen=True)
class Bank:
    """A fleet with a worker and one gateway, whose people have keys."""

    bed: TestBed
    gateway: KeyedGateway
    redis: FaultyRedis

    async def ask(self, who: str, agent: str = "strict") -> str:
        """The id of a call that waits for people."""
        body = {"tool_name": "bank.pay", "arguments": {"n": 1}, "agent": agent}
        answer = await self.gateway.post(who, "/calls", body)
        assert answer.status_code == 202, answer.text
        assert answer.json()["state"] == "waiting_approval"
        return str(answer.json()["call_id"])


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    module = ModuleServer("bank")
    module.add("pay", echo, effect="once")
    with serve(module), faulty_redis(tmp_path_factory.mktemp("redis")) as redis:
        more: dict[str, object] = {"agents": AGENTS, "signing_key": SIGNING_KEY}
        bed = TestBed(redis.url, (module,), tmp_path_factory.mktemp("logs"), more)
        with bed.worker(), keyed_gateway(bed) as gateway:
            yield Bank(bed, gateway, redis)


@pytest.fixture
async def fleet(bank: Bank) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=bank.bed.settings) as fleet:
        yield fleet


async def told(reader: EventReader, *kinds: str, of: str | None = None) -> list[Event]:
    """The next events, which are of these kinds."""
    found = [await reader.next() for _ in kinds]
    assert [each.kind for each in found] == list(kinds)
    if of is not None:
        assert {each.data["approval"]["id"] for each in found} == {of}
    return found


async def settled(bed: TestBed, call_id: str) -> None:
    """Do what a worker's ticks do, until the call is denied."""
    session = Session(bed.settings, has_agent=False)
    await session.open()
    try:

        async def is_settled() -> bool:
            await settle_due(session.approvals, seconds=5, lease_seconds=0.1)
            return (await session.approvals.show(call_id)).state == "expired"

        await wait_until_answered(is_settled, "it is denied")
    finally:
        await session.aclose()


async def test_each_step_is_told(bank: Bank, fleet: ToolFleet) -> None:
    """Asked, voted, edited and approved; rejected; withdrawn; and what nobody has decided in time."""
    async with streaming(bank.gateway, "vera", EVENTS) as stream:
        await told(stream, "following")
        paid = await bank.ask("eve", "careful")
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

        refused = await bank.ask("eve")
        await fleet.approvals.reject(refused, BOSS, reason="No.")
        (_, rejected) = await told(stream, "asked", "rejected", of=refused)
        assert rejected.data["approval"]["journal"][-1]["reason"] == "No."
        left = await bank.ask("eve")
        await bank.gateway.delete("eve", f"/calls/{left}")
        (_, withdrawn) = await told(stream, "asked", "withdrawn", of=left)
        assert withdrawn.data["approval"]["state"] == "withdrawn"
        late = await bank.ask("eve", "hasty")
        await told(stream, "asked", of=late)
        settling = asyncio.create_task(settled(bank.bed, late))
        await told(stream, "expired", of=late)
        await settling


async def test_each_hears_of_what_is_theirs(bank: Bank) -> None:
    """Whoever may decide and whoever asks; a user without a right hears of none, and nobody without a key of anything."""
    async with contextlib.AsyncExitStack() as stack:
        people = ("ada", "eve", "bob")
        readers = {who: await stack.enter_async_context(streaming(bank.gateway, who, EVENTS)) for who in people}
        for reader in readers.values():
            await told(reader, "following")
        eves, bobs = await bank.ask("eve"), await bank.ask("bob")
        await told(readers["ada"], "asked", of=eves)
        await told(readers["ada"], "asked", of=bobs)
        await told(readers["eve"], "asked", of=eves)
        await told(readers["bob"], "asked", of=bobs)
    assert (await bank.gateway.get("nobody", EVENTS)).status_code == 401
    wrong = await bank.gateway.get("ada", EVENTS, headers={"last-event-id": "yesterday"})
    assert wrong.status_code in {400, 422}


async def test_a_killed_gateway_loses_no_event(bank: Bank, fleet: ToolFleet) -> None:
    """Another one goes on behind the last id that the client has; what no stream has any more is said to be lost."""
    with gateway_process(bank.bed) as mortal:
        async with streaming(KeyedGateway(mortal, bank.gateway.keys), "vera", EVENTS) as stream:
            await told(stream, "following")
            asked = await bank.ask("eve")
            (last,) = await told(stream, "asked", of=asked)
            mortal.process.process.kill()
    await fleet.approvals.reject(asked, BOSS)
    async with streaming(bank.gateway, "vera", EVENTS, last=last.id) as stream:
        await told(stream, "following")
        await told(stream, "rejected", of=asked)
    async with streaming(bank.gateway, "vera", EVENTS, last="1-1") as stream:
        await told(stream, "events_lost")


async def test_a_frozen_redis_loses_no_event(bank: Bank) -> None:
    """The stream stays open, and goes on when Redis does; what is decided meanwhile is refused, or told."""
    call_id = await bank.ask("eve")
    async with streaming(bank.gateway, "vera", EVENTS) as stream:
        await told(stream, "following")
        with bank.redis.frozen():
            deciding = asyncio.create_task(bank.gateway.post("ada", f"/approvals/{call_id}", {"decision": "reject"}))
            await asyncio.wait({deciding}, timeout=3)
        decided = await deciding
        if decided.status_code != 200:
            assert decided.status_code == 503, decided.text
            again = await bank.gateway.post("ada", f"/approvals/{call_id}", {"decision": "reject"})
            assert again.status_code in {200, 409}, again.text  # the first may have been taken
        await told(stream, "rejected", of=call_id)


async def test_a_calls_own_stream_says_what_people_decide(bank: Bank, fleet: ToolFleet) -> None:
    """That it waits, what they have decided, and its end; whoever comes again hears of what they know already no more."""
    call_id = await bank.ask("eve")
    path = f"/calls/{call_id}/events"
    async with streaming(bank.gateway, "eve", path) as stream:
        waits = await stream.next()
        assert (waits.kind, waits.data["state"], waits.data["id"]) == ("approval", "waiting", call_id)
    async with streaming(bank.gateway, "eve", path, last=waits.id) as stream:
        await fleet.approvals.approve(call_id, BOSS, reason="Go.")
        decided = await stream.next()
        assert (decided.kind, decided.data["state"]) == ("approval", "approved")
        assert decided.data["journal"][-1]["reason"] == "Go."
        ended = await stream.next()
        while ended.kind == "progress":
            ended = await stream.next()
        assert (ended.kind, ended.data["success"]) == ("end", True)
