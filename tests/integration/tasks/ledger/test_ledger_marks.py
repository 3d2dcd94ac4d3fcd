"""What a call's record changes beside it: shares, rooms, breakers, idempotency keys and dead letters, in the same step."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.waiting import wait_until_equal
from support.workers.ledgers import (
    ENDING,
    RECORD,
    SUCCESS,
    TURNED_AWAY,
    attempt,
    begun,
    claimed,
    close,
    failed,
    finish,
    holding,
    refused,
    run_out,
)
from toolfleet_registry.contracts.attempts import Attempt, Health, Outcome
from toolfleet_registry.contracts.calls import DeadLetter
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.dead_letters.letters import DeadLetters
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger, NotClaimed
from toolfleet_tasks.ledger.retry import is_away
from toolfleet_tasks.messages.fleet_results import CallEnding

CALL = published(user_id="ada", idempotency_key="pay", published_at=1.0)  # so that it waits for no module
SHARE, INTENT = Keys().caller_limit("fast", "ada"), Keys().intent("ada", "pay")
ROOM, BREAKER = Keys().running("research"), Keys().breaker("research")
SETTINGS: dict[str, Any] = {
    "module_concurrency": {"research": 2},
    "dead_letters_kept": 3,
}
AWAY = attempt(Outcome.NOT_SENT, "module_unreachable", "none")
UNKNOWN = CallEnding(failed("internal", "none"), failed("internal", "none"), failed("outcome_unknown"))


@pytest.fixture(autouse=True)
def _two_failures_open_a_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolfleet_tasks.ledger.parameters.BREAKER_FAILURES", 2)


@pytest.fixture(autouse=True)
async def _has_begun(redis: Redis) -> None:
    """`CALL` counts for its caller and stands for an intention."""
    await redis.zadd(SHARE, {"call-1": time.time() + 60, "call-7": time.time() + 60})
    await redis.expire(SHARE, 60)
    await redis.set(INTENT, "call-1 digest", ex=60)


async def letters(redis: Redis) -> list[DeadLetter]:
    found = await DeadLetters(redis).list()
    assert all(isinstance(letter, DeadLetter) for letter in found)
    return [letter for letter in found if isinstance(letter, DeadLetter)]


async def ended_by_a_worker(ledger: Ledger) -> None:
    """As its attempt."""
    await finish(ledger, await begun(ledger, CALL))


async def ended_after_its_attempt(ledger: Ledger) -> None:
    """The retry could not be published."""
    claim = await begun(ledger, CALL)
    await close(ledger, claim)
    await ledger.finish(claim, TURNED_AWAY.result)


async def ended_from_outside(ledger: Ledger) -> None:
    """At its deadline; and then its worker hears of it."""
    claim = await begun(ledger, CALL)
    await ledger.end(CALL, ENDING, data_id=ANY_DATA)
    assert await finish(ledger, claim) is None


async def ended_unbegun(ledger: Ledger) -> None:
    """At its deadline, in the queue."""
    await ledger.end(CALL, ENDING, data_id=ANY_DATA)


End = Callable[[Ledger], Awaitable[None]]


@pytest.mark.parametrize("end", [ended_by_a_worker, ended_after_its_attempt, ended_from_outside, ended_unbegun])
async def test_a_call_that_has_ended_counts_for_nothing(ledger: Ledger, redis: Redis, end: End) -> None:
    """Neither in its caller's share nor in its module's room."""
    await end(ledger)

    assert await redis.zrange(SHARE, 0, -1) == ["call-7"]
    assert await redis.exists(ROOM) == 0


@pytest.mark.parametrize("hears", ["late result", "late attempt", "renewal", "leaves"])
async def test_a_call_that_was_ended_from_outside_keeps_its_place_while_it_runs(
    ledger: Ledger, redis: Redis, hears: str
) -> None:
    """The module is at it until its worker hears that nobody waits any more."""
    claim = await begun(ledger, CALL)
    with holding(ledger.claims, claim):
        await ledger.end(CALL, ENDING, data_id=ANY_DATA)
        assert await redis.zrange(ROOM, 0, -1) == ["call-1"]
        if hears == "late result":
            await finish(ledger, claim)
        elif hears == "late attempt":
            assert not await close(ledger, claim)
        elif hears == "renewal":
            ledger.claims._renew()
    await wait_until_equal(lambda: redis.exists(ROOM), 0, "its room is free")


@pytest.mark.parametrize(
    ("end", "is_free"),
    [
        (ended_by_a_worker, False),  # it worked
        (ended_after_its_attempt, True),  # it was turned away: nothing happened
        (ended_from_outside, False),  # nobody knows
        (ended_unbegun, True),
    ],
)
async def test_an_intention_that_came_to_nothing_is_open_again(
    ledger: Ledger, redis: Redis, end: End, is_free: bool
) -> None:
    """Its key may then be used for another call; else a repeat has this one's result."""
    await end(ledger)

    assert (await redis.get(INTENT) is None) == is_free


@pytest.mark.parametrize("holder", ["call-10 digest", "call-2 digest"])
async def test_an_intention_is_freed_by_its_own_call_only(ledger: Ledger, redis: Redis, holder: str) -> None:
    """Not by an earlier one with the same key, whatever its name begins with."""
    await redis.set(INTENT, holder, ex=60)
    await ended_unbegun(ledger)

    assert await redis.get(INTENT) == holder


async def test_a_module_runs_so_many_calls_at_once(ledger: Ledger, redis: Redis) -> None:
    """A further one is no attempt and leaves no record; it is claimed when one has been closed or has ended."""
    calls = [published(call_id=f"call-{number}") for number in range(4)]
    first, second = await begun(ledger, calls[0]), await begun(ledger, calls[1])
    assert (await refused(ledger, calls[2])).reason == "full"
    assert await redis.exists("toolfleet:call:call-2") == 0

    await close(ledger, first)
    assert (await begun(ledger, calls[2])).attempts == 1
    assert (await refused(ledger, calls[3])).reason == "full"
    await finish(ledger, second)
    assert (await begun(ledger, calls[3])).attempts == 1
    assert sorted(await redis.zrange(ROOM, 0, -1)) == ["call-2", "call-3"]


async def test_dead_workers_calls_leave_their_room(ledger: Ledger, redis: Redis) -> None:
    """With their leases."""
    for number in range(2):
        await begun(ledger, published(call_id=f"call-{number}"))
    await redis.zadd(ROOM, {"call-0": 1, "call-1": 1})

    assert (await begun(ledger, published(call_id="call-2"))).attempts == 1


async def test_a_full_module_does_not_keep_calls_from_their_end(ledger: Ledger, redis: Redis) -> None:
    """A call that must not be begun again needs no room to be ended."""
    await begun(ledger, CALL)
    await run_out(redis)
    await redis.zrem(ROOM, "call-1")
    for number in (2, 3):
        await begun(ledger, published(call_id=f"call-{number}"))

    assert (await claimed(ledger, CALL)).granted == "unknown"


async def test_modules_without_a_bound_have_no_room(ledger: Ledger, redis: Redis) -> None:
    """They cost Redis nothing."""
    await begun(ledger, published("owls.count"))

    assert await redis.exists(Keys().running("owls")) == 0


async def away(ledger: Ledger, count: int = 2, ended: Attempt = AWAY) -> None:
    """So many calls of the module end so, the first ones to be retried, the last one for good."""
    for number in range(count):
        claim = await begun(ledger, published(call_id=f"away-{number}"))
        await (close if number < count - 1 else finish)(ledger, claim, ended)


async def test_a_module_that_is_away_is_left_alone(ledger: Ledger, redis: Redis) -> None:
    """After so many failures in a row a call is not begun, and may be ended with the time that is left."""
    await away(ledger)
    claim = await claimed(ledger, CALL)

    assert (claim.granted, claim.attempts, claim.log) == ("open", 0, "")
    assert 0 <= claim.rest_seconds <= 10
    assert await redis.exists(ROOM) == 0
    assert await ledger.finish(claim, AWAY.result)
    assert await redis.exists(INTENT) == 0


async def test_an_open_breaker_is_no_attempt_of_a_call_that_was_begun_before(ledger: Ledger, redis: Redis) -> None:
    """What the first attempt may have done is not forgotten. The retry waits for its module first, from that attempt's end on."""
    await close(ledger, await begun(ledger, CALL), attempt(Outcome.FAILED))
    await away(ledger)
    assert (await refused(ledger, CALL)).reason == "away"
    await redis.hincrby(RECORD, "closed_at", -6_000)
    claim = await claimed(ledger, CALL)

    assert (claim.granted, claim.attempts, claim.so_far) == ("open", 1, "unknown")
    assert claim.why == "failed"


async def test_a_retry_knows_how_long_it_may_wait_for_its_module(ledger: Ledger, redis: Redis) -> None:
    """A first attempt does not wait so; a claim that is given back leaves the rest of the time as it is."""
    first = await begun(ledger, CALL)
    assert first.patience_seconds == 0
    await close(ledger, first, attempt(Outcome.FAILED))
    await redis.hincrby(RECORD, "closed_at", -2_000)
    retry = await begun(ledger, CALL)
    assert 0 < retry.patience_seconds <= 3
    ledger.claims.give_back(retry)
    await ledger.state_of(CALL.call_id)
    again = await begun(ledger, CALL)

    assert again.attempts == 2
    assert again.patience_seconds <= retry.patience_seconds


async def test_no_call_tries_a_module_that_was_away(ledger: Ledger, redis: Redis) -> None:
    """It waits for somebody to look; when the module is back it is let in, or waits for its turn."""
    await away(ledger)
    await redis.hset(BREAKER, "open_until", 1)
    assert (await refused(ledger, CALL)).reason == "away"
    assert await redis.exists(RECORD, ROOM) == 0
    seconds, _ = await redis.time()
    await redis.hset(BREAKER, mapping={"half_at": seconds * 1000, "let_in_at": seconds * 1000, "tokens": 1})
    first = await begun(ledger, published(call_id="call-2"))
    assert (await refused(ledger, CALL)).reason == "queued"
    assert await redis.exists(RECORD) == 0
    await finish(ledger, first)

    assert (await claimed(ledger, CALL)).granted == "go"


async def test_a_claim_that_is_given_back_lets_another_call_in(ledger: Ledger, redis: Redis) -> None:
    """Nothing was sent, so nothing is known of the module."""
    await away(ledger)
    seconds, _ = await redis.time()
    await redis.hset(
        BREAKER, mapping={"open_until": 1, "half_at": seconds * 1000, "let_in_at": seconds * 1000, "tokens": 1}
    )
    ledger.claims.give_back(await begun(ledger, published(call_id="call-2")))
    await asyncio.sleep(0)
    await ledger.state_of("call-2")

    assert (await claimed(ledger, CALL)).granted == "go"


async def test_a_worker_that_cannot_connect_claims_nothing(ledger: Ledger, redis: Redis) -> None:
    """The call is for another worker, and has no record."""
    answer = await ledger.claim(CALL, can_reach=False)

    assert isinstance(answer, NotClaimed)
    assert answer.reason == "away"
    assert await redis.exists(RECORD, ROOM) == 0


async def test_a_call_that_is_young_waits_for_its_module(ledger: Ledger) -> None:
    """A restart takes a second or two."""
    await away(ledger)
    answer = await refused(ledger, published(published_at=time.time()))

    assert answer.reason == "away"
    assert 0 < answer.rest_seconds <= 1


async def test_failures_are_counted_in_a_row_and_once_each(ledger: Ledger) -> None:
    """An answer of the module's own begins a new row, and an end without an attempt says nothing of it."""
    await away(ledger, 1)
    claim = await begun(ledger, published(call_id="call-2"))
    await close(ledger, claim, TURNED_AWAY)
    await ledger.finish(claim, AWAY.result)
    await finish(ledger, await begun(ledger, published(call_id="call-3")), AWAY)

    assert (await claimed(ledger, published(call_id="call-4"))).granted == "go"


@pytest.mark.parametrize(
    ("ended", "counts"),
    [
        (AWAY, True),
        (attempt(Outcome.UNKNOWN, "timed_out"), True),
        (attempt(Outcome.UNKNOWN, "timed_out", is_stopped=True), False),  # it says so itself
        (
            attempt(Outcome.UNKNOWN, "outcome_unknown", is_stopped=True),
            False,
        ),  # what ran it is gone, and not the module
        (attempt(Outcome.UNKNOWN, "module_error"), True),  # 502, 504, a connection that broke
        (attempt(Outcome.UNKNOWN, "invalid_response"), False),  # somebody is there
        (attempt(Outcome.UNKNOWN, "result_too_large"), False),
        (attempt(Outcome.UNKNOWN, "internal"), None),  # a defect of ours: nobody has met it
        (
            attempt(Outcome.NOT_SENT, "module_unreachable", "none", unreached=Health.AWAY),
            None,
        ),  # others may have more luck
        (TURNED_AWAY, False),  # it says itself that it is busy
        (attempt(Outcome.FAILED), False),
        (attempt(Outcome.PERMANENT, "permission_denied", "none"), None),  # refused before it was asked
        (attempt(Outcome.PERMANENT, "module_error", "none"), False),
        (SUCCESS, False),
    ],
)
def test_what_says_that_a_module_is_away(ended: Attempt, counts: bool | None) -> None:
    """No answer, or none of its own. What never came so far says nothing."""
    assert is_away(ended, CALL, seconds=CALL.limit_seconds) is counts


@pytest.mark.parametrize(("seconds", "granted"), [(30, "open"), (2, "go")])
async def test_only_a_whole_limit_of_silence_counts(ledger: Ledger, seconds: float, granted: str) -> None:
    """A caller that is in a hurry closes no module for the others."""
    silent = attempt(Outcome.UNKNOWN, "timed_out")
    for number in (2, 3):
        claim = await begun(ledger, published(call_id=f"call-{number}"))
        await ledger.finish(claim, silent.result, attempt=silent, seconds=seconds)

    assert (await claimed(ledger, published(call_id="call-4", published_at=1.0))).granted == granted


@pytest.mark.parametrize(("effect", "kept"), [("once", 1), (None, 1), ("idempotent", 0), ("read", 0)])
async def test_an_end_that_nobody_has_seen_is_a_dead_letter(
    ledger: Ledger, redis: Redis, effect: Any, kept: int
) -> None:
    """The payment that timed out: for a person to find out about. What may be repeated at will is not worth one."""
    silent = attempt(Outcome.UNKNOWN, "timed_out")
    await finish(ledger, await begun(ledger, published(effect=effect)), silent)

    assert len(await letters(redis)) == kept


async def test_an_unknown_end_is_a_dead_letter(ledger: Ledger, redis: Redis) -> None:
    """Kept with every attempt of the call, without the arguments that must not be kept."""
    call = published(arguments={"query": "owls", "pin": "1234"}, sensitive=("/pin",))
    await begun(ledger, call)
    await run_out(redis)
    await ledger.finish(await claimed(ledger, call), failed("outcome_unknown"))
    (letter,) = await letters(redis)

    assert (letter.call_id, letter.error_code, letter.reason) == ("call-1", "outcome_unknown", "it failed")
    assert letter.arguments == {"query": "owls", "pin": "[redacted]"}
    assert [(each.attempt, each.outcome) for each in letter.attempts] == [(1, "never closed")]


async def test_an_exhausted_call_is_a_dead_letter(ledger: Ledger, redis: Redis) -> None:
    """With what both attempts came to."""
    await close(ledger, await begun(ledger, CALL))
    await finish(ledger, await begun(ledger, CALL), attempt(Outcome.FAILED))
    (letter,) = await letters(redis)

    assert [(each.outcome, each.ms) for each in letter.attempts] == [("turned away", 12.0), ("failed", 5.0)]


@pytest.mark.parametrize(
    ("last", "is_letter"),
    [
        (attempt(Outcome.FAILED), False),
        (attempt(Outcome.SERVER_ERROR), False),
        (attempt(Outcome.PERMANENT), False),  # the repeat was declined, and the first answer holds
        (attempt(Outcome.UNKNOWN), True),  # nobody knows what the repeat did
    ],
)
async def test_an_answer_that_was_repeated_is_no_dead_letter(
    ledger: Ledger, redis: Redis, last: Attempt, is_letter: bool
) -> None:
    """A tool without an effect that is repeated by habit has answered each time, as one that is not repeated has."""
    await close(ledger, await begun(ledger, CALL), attempt(Outcome.FAILED))
    await finish(ledger, await begun(ledger, CALL), last)

    assert bool(await letters(redis)) == is_letter


async def test_a_reader_that_has_answered_is_no_dead_letter(ledger: Ledger, redis: Redis) -> None:
    """However often it was asked: there is nothing that could have happened."""
    reader = published(effect="read")
    await close(ledger, await begun(ledger, reader))
    await finish(ledger, await begun(ledger, reader), attempt(Outcome.FAILED, effect_state="none"))

    assert await letters(redis) == []


@pytest.mark.parametrize("ended", [SUCCESS, TURNED_AWAY, attempt(Outcome.FAILED)])
async def test_an_end_that_is_known_is_no_dead_letter(ledger: Ledger, redis: Redis, ended: Attempt) -> None:
    """Its caller knows all there is to know."""
    await finish(ledger, await begun(ledger, CALL), ended)

    assert await letters(redis) == []


async def test_a_success_at_last_is_no_dead_letter(ledger: Ledger, redis: Redis) -> None:
    """However it came about."""
    await close(ledger, await begun(ledger, CALL))
    await finish(ledger, await begun(ledger, CALL))

    assert await letters(redis) == []


async def test_an_end_from_outside_that_nobody_can_know_is_a_dead_letter(ledger: Ledger, redis: Redis) -> None:
    """But not one of a call that surely did nothing, nor one that came too late."""
    await ledger.end(published(call_id="call-2"), UNKNOWN, data_id=ANY_DATA)
    await finish(ledger, await begun(ledger, published(call_id="call-3")))
    await ledger.end(published(call_id="call-3"), UNKNOWN, data_id=ANY_DATA)
    await begun(ledger, CALL)
    await ledger.end(CALL, UNKNOWN, data_id=ANY_DATA)

    (letter,) = await letters(redis)
    assert (letter.call_id, [each.outcome for each in letter.attempts]) == ("call-1", ["never closed"])


async def test_so_many_dead_letters_are_kept(ledger: Ledger, redis: Redis) -> None:
    """The latest ones."""
    for number in range(5):
        await finish(
            ledger, await begun(ledger, published(call_id=f"call-{number}")), attempt(Outcome.UNKNOWN, "internal")
        )

    assert [letter.call_id for letter in await letters(redis)] == ["call-4", "call-3", "call-2"]


async def test_a_record_says_what_became_of_its_attempts(ledger: Ledger, redis: Redis) -> None:
    """Each one is written down once."""
    await close(ledger, await begun(ledger, CALL))
    await finish(ledger, await begun(ledger, CALL))

    assert await redis.hget(RECORD, "log") == "1 turned_away 12;2 success 5;"
