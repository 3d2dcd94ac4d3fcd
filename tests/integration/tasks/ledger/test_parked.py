"""Calls that their modules go on with, in the ledger: nobody holds them, and they end once. Also when each script is sent twice."""

import time

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.workers.ledgers import (
    ENDING,
    RECORD,
    SUCCESS,
    begun,
    claimed,
    close,
    finish,
    holding,
    refused,
    run_out,
    worker_ledger,
)
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.ledger.claims import AcceptedAttempt, Claim
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.ledger.parameters import Ended
from toolfleet_tasks.ledger.scripts import CLAIM
from toolfleet_tasks.ledger.waiting import CallEnded, NotEndedYet
from toolfleet_tasks.messages.json_text import VERSION
from toolfleet_tasks.results.stored import read_stored

CALL = published(effect="once", deadline_at=time.time() + 3600)
SETTINGS = {"module_concurrency": {"research": 1}}
EGG = AcceptedAttempt("egg ✓", 12.5, 0.5)
HEARD = Ended("accepted 5", 0, 3, 10_000)
SILENT = Ended("accepted 5000", 1, 3, 10_000)
KEY = "a secret of more than thirty-two characters"


async def parked(ledger: Ledger, ended: Ended = HEARD, *, seconds: float = 0) -> Claim:
    """A call that was accepted, and may be asked for after so many seconds."""
    claim = await begun(ledger, CALL)
    with holding(ledger.claims, claim):
        assert await ledger.waiting.park(claim, EGG, ended, seconds=seconds)
    return claim


async def test_nobody_holds_it_until_it_is_asked_for(ledger: Ledger, redis: Redis) -> None:
    """It runs for whoever looks, and leaves its place in its module; a second message of it comes too early."""
    await parked(ledger, seconds=30)
    assert await ledger.state_of(CALL.call_id) == "running"
    assert await redis.zcard(Keys().running("research")) == 0
    early = await refused(ledger, CALL)
    assert (early.reason, 25 < early.rest_seconds <= 30) == ("early", True)


async def test_it_is_asked_for_again_and_again(ledger: Ledger, redis: Redis) -> None:
    """By whichever worker: that is no attempt, whatever was done before it, and its end is its one result."""
    first = await begun(ledger, CALL)
    await close(ledger, first)
    await parked(ledger)
    for _ in range(3):
        claim = await claimed(ledger, CALL)
        assert (claim.granted, claim.attempts, claim.accepted) == ("accepted", 2, EGG)
        with holding(ledger.claims, claim):
            assert (await refused(ledger, CALL)).reason == "busy"
            assert await ledger.waiting.park(claim, EGG, HEARD, seconds=0)
    claim = await claimed(ledger, CALL)
    assert await finish(ledger, claim) is not None
    assert (await refused(ledger, CALL)).reason == "done"
    assert not await redis.hexists(RECORD, "accepted")
    assert await ledger.waiting.recall(CALL.call_id) is None


async def test_who_dies_as_he_asks_is_followed_by_another(ledger: Ledger, redis: Redis) -> None:
    """A lease that has run out is no attempt; two in a row end the call, one that was answered between them does not."""
    await parked(ledger)
    for _ in range(2):
        await claimed(ledger, CALL)
        await run_out(redis)
        again = await ledger.claim(CALL, deaths=None)
        assert isinstance(again, Claim)
        assert (again.granted, again.accepted, again.attempts) == ("accepted", EGG, 1)
        assert await ledger.waiting.park(again, EGG, HEARD, seconds=0)
    for granted in ("accepted", "accepted", "killed"):
        claim = await ledger.claim(CALL, deaths=None)
        assert isinstance(claim, Claim)
        assert claim.granted == granted
        await run_out(redis)


async def test_who_has_lost_it_cannot_keep_it(ledger: Ledger, redis: Redis, other: Ledger) -> None:
    """Another worker has it by now: it alone says what becomes of it."""
    claim = await begun(ledger, CALL)
    await run_out(redis)
    assert (await claimed(other, CALL)).granted == "unknown"
    assert not await ledger.waiting.park(claim, EGG, HEARD, seconds=0)


async def test_its_end_from_outside_is_unknown_and_told_once(ledger: Ledger, other: Ledger) -> None:
    """Nobody may take it for undone; one worker is to tell the module, and nobody once it has ended by itself."""
    await parked(ledger)
    with pytest.raises(NotEndedYet):
        await ledger.waiting.recall(CALL.call_id)
    claim = await claimed(ledger, CALL)
    stored = await other.end(CALL, ENDING, data_id=ANY_DATA)
    assert read_stored(stored, CALL.tool_name).effect_state == "unknown"
    with pytest.raises(CallEnded):
        await ledger.waiting.park(claim, EGG, HEARD, seconds=0)
    assert await ledger.waiting.recall(CALL.call_id) == (EGG, "")
    assert await ledger.waiting.recall(CALL.call_id) is None


async def test_a_module_that_is_silent_for_all_is_left_alone(ledger: Ledger) -> None:
    """Each question in vain counts against it; then nobody spends a slot on it for a while."""
    await parked(ledger)
    for _ in range(3):
        claim = await claimed(ledger, CALL)
        assert await ledger.waiting.park(claim, EGG, SILENT, seconds=0)
    assert (await refused(ledger, CALL)).reason == "early"


async def test_a_record_that_is_lost_as_it_is_accepted_is_written_anew(ledger: Ledger, redis: Redis) -> None:
    """Redis has forgotten who has it; the worker that has knows."""
    claim = await begun(ledger, CALL)
    await redis.delete(RECORD)
    with holding(ledger.claims, claim):
        assert await ledger.waiting.park(claim, EGG, HEARD, seconds=0)
    assert (await claimed(ledger, CALL)).accepted == EGG


async def test_older_workers_leave_it_to_newer_ones(
    ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that knows of no such calls neither runs nor ends it."""
    await parked(ledger)
    older = CLAIM.text.replace(f"local VERSION = {VERSION}", "local VERSION = 1")
    assert older != CLAIM.text
    with monkeypatch.context() as patch:
        patch.setitem(CLAIM.__dict__, "text", older)
        patch.setitem(CLAIM.__dict__, "digest", "0" * 40)  # Redis has never seen it
        assert (await refused(ledger, CALL)).reason == "newer"
    assert (await claimed(ledger, CALL)).granted == "accepted"


@pytest.mark.parametrize("signs", [True, False])
async def test_a_handle_that_nobody_has_signed_is_none(redis_url: str, redis: Redis, signs: bool) -> None:
    """Whoever writes into Redis cannot have a module asked for other work than the call's."""
    async with worker_ledger(redis_url, signing_key=KEY if signs else None) as ledger:
        await parked(ledger)
        claim = await claimed(ledger, CALL)
        assert claim.accepted == EGG
        assert await ledger.waiting.park(claim, EGG, HEARD, seconds=0)
        forged = AcceptedAttempt("another's", 12.5, 0.5)
        await redis.hset(RECORD, "accepted", forged.written())
        claim = await claimed(ledger, CALL)
        assert claim.accepted == (None if signs else forged)
        await ledger.finish(claim, SUCCESS.result)


@pytest.mark.parametrize("text", ["[]", "{}", '{"handle": "", "begun_at": 1, "wait_seconds": 1}', "egg", "[" * 5_000])
def test_what_is_no_acceptance_is_none(text: str) -> None:
    """Of a record that somebody else has written."""
    assert AcceptedAttempt.read(text) is None
