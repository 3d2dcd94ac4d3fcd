"""A claim lives as long as its worker is at the call, and not longer."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Generator
from contextlib import ExitStack
from typing import Any

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from bed import clock
from bed.fleet import Bed, until
from support.published_call import published
from support.waiting import wait_until
from support.workers.held_messages import cut
from support.workers.ledgers import RECORD, begun, claimed, close, finish, holding, refused, run_out, worker_ledger
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.redis_connection import Part
from toolfleet_tasks.scripts import LONGEST_LEASE_SECONDS

LATER = time.time() + 30 * 86_400  # however far other tests have moved the clock
CALL, READ, ONCE = (published(effect=effect, deadline_at=LATER) for effect in (None, "read", "once"))
LEASE_SECONDS = round(LONGEST_LEASE_SECONDS)


@pytest.fixture
async def ledger(redis: Redis, redis_url: str) -> AsyncIterator[Ledger]:
    """A worker's."""
    async with worker_ledger(redis_url) as ledger:
        yield ledger


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[Ledger]:
    """Another worker's."""
    async with worker_ledger(redis_url) as ledger:
        yield ledger


@pytest.fixture
def look(redis_url: str) -> Generator[SyncRedis]:
    with SyncRedis.from_url(redis_url, decode_responses=True) as client:
        yield client


def lease_of(look: SyncRedis, key: str = RECORD) -> int:
    lease: Any = look.hget(key, "lease")
    return int(lease or 0)


async def renewed(look: SyncRedis, since: int) -> int:
    await until(lambda: lease_of(look) > since, "the lease has begun anew", step=1)
    return lease_of(look)


async def test_a_claim_is_renewed_while_it_is_held(ledger: Ledger, other: Ledger) -> None:
    """For longer than one lease, nobody else gets the call."""
    claim = await begun(ledger, READ)
    with holding(ledger.claims, claim):
        for _ in range(5 * LEASE_SECONDS):
            await asyncio.sleep(1)
            assert (await refused(other, READ)).reason == "busy"
        assert await finish(ledger, claim) is not None


async def test_all_claims_of_a_process_are_renewed_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, look: SyncRedis
) -> None:
    """A thousand calls cost Redis a handful of scripts, and none of these holds it up."""
    calls = [published(call_id=f"call-{number}") for number in range(450)]
    claims = await asyncio.gather(*(begun(ledger, call) for call in calls))
    sent: list[tuple[Part, ...]] = []
    line, send = ledger.claims._connection, ledger.claims._connection.send
    for call in calls:
        look.hset(f"toolfleet:call:{call.call_id}", "lease", 1)

    def noted(*command: Part) -> "asyncio.Future[Any]":
        sent.append(command)
        return send(*command)

    with ExitStack() as held:
        for claim in claims:
            held.enter_context(holding(ledger.claims, claim))
        monkeypatch.setattr(line, "send", noted)
        ledger.claims._renew()
        await line.execute("PING")
        monkeypatch.setattr(line, "send", send)
        assert len(sent) == 3 + 1
        assert all(lease_of(look, f"toolfleet:call:{call.call_id}") > 1 for call in calls)


async def test_a_lost_claim_is_heard_of(ledger: Ledger, other: Ledger, redis: Redis, look: SyncRedis) -> None:
    """Its worker was frozen, and others have the call: it is told once, and theirs is left alone."""
    claim, lost = await begun(ledger, READ), list[str]()
    claim.on_lost = lambda: lost.append(claim.call.call_id)
    with holding(ledger.claims, claim):
        await run_out(redis)
        await begun(other, READ)
        lease = lease_of(look)
        ledger.claims._renew()
        await wait_until(lambda: lost, "it has heard")
        ledger.claims._renew()
        await ledger.claims._connection.execute("PING")
    await ledger.claims._connection.execute("PING")

    assert lost == ["call-1"]
    assert lease_of(look) == lease
    assert await finish(ledger, claim) is None


async def test_a_call_that_was_ended_from_outside_is_lost(ledger: Ledger, redis: Redis) -> None:
    """Its worker need not go on."""
    claim, lost = await begun(ledger, CALL), list[int]()
    claim.on_lost = lambda: lost.append(1)
    with holding(ledger.claims, claim):
        await redis.hset(RECORD, "state", "done")
        await redis.hdel(RECORD, "token")
        ledger.claims._renew()
        await wait_until(lambda: lost, "it has heard")


async def test_a_redis_without_its_data_takes_no_claim_away(ledger: Ledger, redis: Redis) -> None:
    """Where there is no record, nobody else has the call."""
    claim, lost = await begun(ledger, CALL), list[int]()
    claim.on_lost = lambda: lost.append(1)
    with holding(ledger.claims, claim):
        await redis.flushall()
        ledger.claims._renew()
        await ledger.claims._connection.execute("PING")
        assert await finish(ledger, claim) is not None

    assert lost == []


async def test_a_worker_that_stands_still_renews_nothing(ledger: Ledger, other: Ledger, look: SyncRedis) -> None:
    """Frozen, or at work on something that blocks it: others may have its calls when their leases have run out."""
    claim = await begun(ledger, READ)
    with holding(ledger.claims, claim):
        await renewed(look, lease_of(look))
        clock.move(LEASE_SECONDS)  # the whole process stands still
        seconds, microseconds = look.time()
        assert lease_of(look) < seconds * 1000 + microseconds / 1000


@pytest.mark.parametrize(("call", "granted"), [(READ, "go"), (ONCE, "unknown")])
async def test_whoever_leaves_lets_go(ledger: Ledger, other: Ledger, call: Any, granted: str) -> None:
    """After an exception in the middle of an attempt the next worker need not wait, but is told that it was never closed."""
    with pytest.raises(ValueError, match="broken"), holding(ledger.claims, await begun(ledger, call)):
        raise ValueError("broken")
    await ledger.claims._connection.execute("PING")
    claim = await claimed(other, call)

    assert (claim.granted, claim.so_far) == (granted, "unknown")


async def test_whoever_has_closed_or_ended_has_nothing_to_let_go_of(ledger: Ledger, other: Ledger) -> None:
    """Leaving after that touches nobody's lease."""
    claim = await begun(ledger, CALL)
    with holding(ledger.claims, claim):
        await close(ledger, claim)
        second = await begun(other, CALL)
    await ledger.claims._connection.execute("PING")
    assert (await refused(ledger, CALL)).reason == "busy"

    with holding(other.claims, second):
        await finish(other, second)
    assert not ledger.claims._held
    assert not other.claims._held


async def test_a_worker_that_ends_lets_go_of_all(ledger: Ledger, other: Ledger) -> None:
    """Its calls need not wait for their leases to run out."""
    calls = [published(call_id=f"call-{number}", effect="read") for number in range(3)]
    with ExitStack() as held:
        for call in calls:
            held.enter_context(holding(ledger.claims, await begun(ledger, call)))
        await ledger.claims.aclose()

        assert [(await claimed(other, call)).attempts for call in calls] == [2, 2, 2]


async def test_a_place_in_a_full_module_is_kept_with_the_claim(redis: Redis, redis_url: str) -> None:
    """A long call is not taken for a dead worker's."""
    async with worker_ledger(redis_url, module_concurrency={"research": 1}) as ledger:
        claim = await begun(ledger, CALL)
        room = Keys().running("research")
        await redis.zadd(room, {"call-1": 1})
        with holding(ledger.claims, claim):
            ledger.claims._renew()
            await ledger.claims._connection.execute("PING")
            assert (await refused(ledger, published(call_id="call-2"))).reason == "full"
            assert await finish(ledger, claim) is not None


@pytest.mark.parametrize("fault", ["frozen", "away"])
async def test_an_outage_of_redis_takes_no_claim_away(bed: Bed, look: SyncRedis, fault: str) -> None:
    """Even if it outlasts the lease: nobody else could ask for the call either, and who runs it goes on."""
    link = await bed.link(bed.redis.port)
    async with worker_ledger(link.redis_url) as ledger:
        claim, lost = await begun(ledger, READ), list[int]()
        claim.on_lost = lambda: lost.append(1)
        with holding(ledger.claims, claim):
            lease = await renewed(look, lease_of(look))
            if fault == "frozen":
                bed.redis.freeze()
            else:
                link.is_away = bool(link.cut())
            await asyncio.sleep(2 * LEASE_SECONDS)
            if fault == "frozen":
                bed.redis.thaw()
            link.is_away = False
            await renewed(look, lease)
            assert await finish(ledger, claim) is not None

        assert lost == []


async def test_a_new_connection_renews_at_once(ledger: Ledger, look: SyncRedis) -> None:
    """Long before it would be time, for nobody knows how long the old one was dead."""
    claim = await begun(ledger, CALL)
    with holding(ledger.claims, claim):
        await asyncio.sleep(1)
        lease, before = lease_of(look), clock.monotonic()
        cut(ledger.claims._connection)
        await renewed(look, lease)
        assert clock.monotonic() - before < 3  # the next turn comes later
        assert await finish(ledger, claim) is not None


async def test_a_lease_counts_from_when_it_was_asked_for(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from Redis' answer, which may have been long on its way; and its last second is the module's."""
    asked_at, seconds = fleet_clock.suspend_aware(), ledger.claims.lease_ms / 1000
    claim = await begun(ledger, CALL)
    monkeypatch.setattr(fleet_clock, "suspend_aware", lambda: asked_at + seconds - 2)
    assert claim.seconds_left() > 0
    monkeypatch.setattr(fleet_clock, "suspend_aware", lambda: asked_at + 0.5 + seconds)
    assert claim.seconds_left() <= 0


@pytest.mark.parametrize("clock", ["suspend_aware", "now"])
async def test_whichever_clock_is_further_on_ends_a_lease(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """A machine that was stopped from outside finds it out by the one or the other; a good renewal makes it live again."""
    claim, now = await begun(ledger, CALL), getattr(fleet_clock, clock)
    monkeypatch.setattr(fleet_clock, clock, lambda: now() + 20)
    assert claim.seconds_left() <= 0
    with holding(ledger.claims, claim):
        ledger.claims._renew()
        await ledger.claims._connection.execute("PING")
        assert claim.seconds_left() > 0


async def test_nothing_begins_after_its_deadline(ledger: Ledger) -> None:
    """However long the lease is: its caller has been told the call's end."""
    claim = await begun(ledger, published(deadline_at=fleet_clock.now() - 1))
    assert claim.seconds_left() <= 0


async def test_a_renewal_that_fails_confirms_nothing(ledger: Ledger, redis: Redis) -> None:
    """Redis has no memory left, say: the lease runs out."""
    claim = await begun(ledger, CALL)
    claim.begin_by = (0, 0)
    with holding(ledger.claims, claim):
        await redis.set(RECORD, "no hash", ex=60)
        ledger.claims._renew()
        await ledger.claims._connection.execute("PING")
        assert claim.seconds_left() <= 0


async def test_a_lost_claim_is_never_live_again(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """From the moment at which its worker hears of it."""
    claim = await begun(ledger, READ)
    with holding(ledger.claims, claim):
        await run_out(redis)
        await begun(other, READ)
        assert claim.seconds_left() > 0
        assert not await ledger.claims.renewed(claim)
    assert claim.seconds_left() == -math.inf


async def test_a_lease_that_nobody_else_has_taken_can_be_begun_anew(ledger: Ledger, redis: Redis) -> None:
    """Its worker stood still, and the call is still its own."""
    claim = await begun(ledger, ONCE)
    claim.begin_by = (0, 0)
    with holding(ledger.claims, claim):
        await run_out(redis)
        assert await ledger.claims.renewed(claim)
        assert claim.seconds_left() > 0


async def test_a_claim_that_was_given_back_was_never_made(ledger: Ledger, other: Ledger, look: SyncRedis) -> None:
    """A worker that is stopped while it asks for a call has sent nothing: the call has both its attempts still."""
    ledger.claims.give_back(await begun(ledger, ONCE))
    await wait_until(lambda: not look.hexists(RECORD, "token"), "the claim is given back")

    assert (await begun(other, ONCE)).attempts == 1


async def test_to_give_back_the_end_of_a_call_leaves_its_attempt_open(
    ledger: Ledger, other: Ledger, look: SyncRedis
) -> None:
    """What an earlier worker had begun and never closed is still not begun again."""
    await begun(ledger, ONCE)
    look.hset(RECORD, "lease", 1)
    ending = await claimed(other, ONCE)
    assert ending.granted == "unknown"
    other.claims.give_back(ending)
    await wait_until(lambda: lease_of(look) == 0, "the claim is given back")

    assert (await claimed(ledger, ONCE)).granted == "unknown"


async def test_a_claim_that_redis_has_lost_is_written_anew(ledger: Ledger, other: Ledger, look: SyncRedis) -> None:
    """Redis may have kept the call's message: whoever gets it finds that somebody is at the call."""
    claim = await begun(ledger, ONCE)
    with holding(ledger.claims, claim):
        look.delete(RECORD)
        await wait_until(lambda: look.exists(RECORD) == 1, "the record is there again")
        assert (await refused(other, ONCE)).reason == "busy"
        assert look.ttl(RECORD) > 0
    await wait_until(lambda: lease_of(look) == 0, "the worker has let go of it")

    assert (await claimed(other, ONCE)).granted == "unknown"
