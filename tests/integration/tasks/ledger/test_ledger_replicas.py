"""Which process of its module has a call: noted before anything is sent there, and kept as long as only that one may know of it."""

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.workers.ledgers import RECORD, TURNED_AWAY, begun, claimed, close, holding, run_out
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.attempts import Attempt, LeaseOver, Outcome
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import Ledger

ONCE, READ = published(effect="once"), published(effect="read")
UNKNOWN = Attempt(Outcome.UNKNOWN, TURNED_AWAY.result.model_copy(update={"effect_state": "unknown"}))


async def begun_at(ledger: Ledger, call: PublishedCall, replica: str) -> Claim:
    claim = await ledger.claim(call, replica=replica)
    assert isinstance(claim, Claim)
    assert claim.granted == "go"
    return claim


def place(claim: Claim) -> tuple[str, bool]:
    return claim.replica, claim.is_scattered


async def noted(redis: Redis) -> dict[str, str]:
    record = await redis.hgetall(RECORD)
    return {name: str(record[name]) for name in ("replica", "scattered", "v") if name in record}


async def test_a_claim_notes_the_process_before_anything_is_sent(ledger: Ledger, redis: Redis) -> None:
    """Workers of the first version, which do not know the field, leave such a call to others."""
    assert place(await begun_at(ledger, ONCE, "a")) == ("a", False)
    assert await noted(redis) == {"replica": "a", "scattered": "", "v": "2"}


async def test_a_module_with_one_address_has_no_such_note(ledger: Ledger, redis: Redis) -> None:
    """Its records are as they were before."""
    assert place(await begun(ledger, ONCE)) == ("", False)
    assert await noted(redis) == {}


async def test_after_an_attempt_that_did_nothing_any_process_may_have_the_call(ledger: Ledger, other: Ledger) -> None:
    """The next worker's choice counts."""
    await close(ledger, await begun_at(ledger, ONCE, "a"), TURNED_AWAY)

    assert place(await begun_at(other, ONCE, "b")) == ("b", False)


async def test_after_an_attempt_that_may_have_acted_its_process_keeps_the_call(ledger: Ledger, other: Ledger) -> None:
    """Whoever asks next would ask another one, and is told of this one."""
    await close(ledger, await begun_at(ledger, READ, "a"), UNKNOWN)

    assert place(await begun_at(other, READ, "b")) == ("a", False)


async def test_the_process_of_a_worker_that_died_is_known(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """It is to be asked what became of the call, and no other."""
    await begun_at(ledger, ONCE, "a")
    await run_out(redis)

    claim = await other.claim(ONCE, replica="b")
    assert isinstance(claim, Claim)
    assert (claim.granted, *place(claim)) == ("unknown", "a", False)


async def test_an_attempt_that_moves_is_noted_at_its_new_process(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """Nothing was sent to the first one, so that what the second one says of the call is all."""
    claim = await begun_at(ledger, ONCE, "a")
    await claim.move("b")
    assert place(claim) == ("b", False)
    await run_out(redis)

    assert place(await claimed(other, ONCE)) == ("b", False)


async def test_a_move_after_an_attempt_that_may_have_acted_scatters_the_call(
    ledger: Ledger, other: Ledger, redis: Redis
) -> None:
    """What the second process does not know may have happened at the first."""
    await close(ledger, await begun_at(ledger, READ, "a"), UNKNOWN)
    claim = await begun_at(ledger, READ, "b")
    await claim.move("b")
    assert place(claim) == ("b", True)
    await run_out(redis)

    assert place(await claimed(other, READ)) == ("b", True)


async def test_an_attempt_of_which_nobody_noted_where_it_was_scatters_the_call(ledger: Ledger, other: Ledger) -> None:
    """The module had one address then, or a worker of an earlier version had the call."""
    await close(ledger, await begun(ledger, READ), UNKNOWN)

    assert place(await begun_at(other, READ, "b")) == ("b", True)


async def test_an_attempt_moves_to_the_one_address_of_a_module_that_had_several(ledger: Ledger, other: Ledger) -> None:
    """Whoever is there is not asked for what another process had."""
    await close(ledger, await begun_at(ledger, READ, "a"), UNKNOWN)
    claim = await begun(other, READ)
    await claim.move("")

    assert place(claim) == ("", True)


async def test_who_has_lost_the_call_moves_nothing(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """A worker that was frozen: the process that the call is at stays noted, and nothing is sent to another one."""
    late = await begun_at(ledger, READ, "a")
    await run_out(redis)
    await begun_at(other, READ, "b")

    with pytest.raises(LeaseOver):
        await late.move("c")
    assert late.replica == "a"
    assert (await noted(redis))["replica"] == "a"


async def test_a_call_that_was_ended_moves_nowhere(ledger: Ledger, redis: Redis) -> None:
    """Its deadline has passed meanwhile: so says Redis, whatever the worker's clock does."""
    claim = await begun_at(ledger, ONCE, "a")
    await redis.hset(RECORD, "state", "done")
    await redis.hdel(RECORD, "token")

    with pytest.raises(LeaseOver):
        await claim.move("b")


async def test_a_record_that_redis_has_lost_comes_back_with_the_process(
    ledger: Ledger, other: Ledger, redis: Redis
) -> None:
    """With the next renewal, for the call still runs."""
    claim = await begun_at(ledger, ONCE, "a")
    await claim.move("b")
    with holding(ledger.claims, claim):
        await redis.delete(RECORD)
        ledger.claims._renew()
        await ledger.connection.execute("PING")  # answered after the renewal
        assert await noted(redis) == {"replica": "b", "scattered": "", "v": "2"}
        await run_out(redis)
        assert place(await claimed(other, ONCE)) == ("b", False)
