"""What the ledger grants of a call with which workers have died."""

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.workers.ledgers import RECORD, RESULT, TURNED_AWAY, begun, close, holding, run_out
from toolfleet_registry.contracts import PublishedCall
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.results.stored import read_stored

READ, ONCE = published(effect="read"), published(effect="once")


async def claim_after(ledger: Ledger, call: PublishedCall, *, deaths: int | None) -> tuple[str, int, str]:
    claim = await ledger.claim(call, deaths=deaths)
    assert isinstance(claim, Claim), claim
    return claim.granted, claim.attempts, claim.so_far


async def test_a_call_that_two_workers_died_with_is_not_begun(redis: Redis, ledger: Ledger) -> None:
    """It had only been reserved there: no attempt is counted, and nothing has happened."""
    assert await claim_after(ledger, READ, deaths=1) == ("go", 1, "none")
    await redis.delete(RECORD)
    assert await claim_after(ledger, READ, deaths=2) == ("killed", 0, "none")
    await run_out(redis)
    assert await claim_after(ledger, READ, deaths=0) == ("killed", 0, "none"), "who was to end it has died"


@pytest.mark.parametrize("call", [READ, ONCE], ids=["read", "once"])
async def test_what_was_begun_there_may_have_happened(call: PublishedCall, redis: Redis, ledger: Ledger) -> None:
    """One of the two had begun it, and nobody knows how far it got."""
    await begun(ledger, call)
    await run_out(redis)
    assert await claim_after(ledger, call, deaths=2) == ("killed", 1, "unknown")


async def test_attempts_that_ended_count_as_they_ended(redis: Redis, ledger: Ledger) -> None:
    """A module that turned it away has done nothing, however many workers died later."""
    await close(ledger, await begun(ledger, READ), TURNED_AWAY)
    assert await claim_after(ledger, READ, deaths=2) == ("killed", 1, "none")


async def test_where_nobody_counts_the_leases_say_it(redis: Redis, ledger: Ledger) -> None:
    """With another transport: two attempts whose leases ran out, but not those that were let go."""
    for _ in range(2):
        assert (await claim_after(ledger, READ, deaths=None))[0] == "go"
        await run_out(redis)
    assert await claim_after(ledger, READ, deaths=None) == ("killed", 2, "unknown")
    await redis.delete(RECORD)
    for _ in range(2):
        with holding(ledger.claims, await begun(ledger, READ)):
            pass
    assert await claim_after(ledger, READ, deaths=None) == ("unknown", 2, "unknown")


async def test_a_call_that_has_ended_meanwhile_is_a_dead_letter_too(redis: Redis, ledger: Ledger) -> None:
    """Its result stays what it was."""
    await ledger.end(READ, fleet_results.at_deadline(READ), data_id=ANY_DATA)
    await ledger.bury(READ, fleet_results.workers_died(READ.tool_name, "none"))

    letter = await redis.hget(ledger._keys.dead, READ.call_id)
    assert "two workers have died" in str(letter)
    assert read_stored(str(await redis.get(RESULT)), READ.tool_name).error_code == "expired"
