"""Who may run a call, and which result is its one result. Every fact holds as well when each script is sent twice."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from support.published_call import published
from support.servers.redis_faults import FaultyRedis
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.ledgers import (
    ENDING,
    RECORD,
    RESULT,
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
    worker_ledger,
)
from toolfleet_registry.contracts import Effect, EffectState, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks import redis_connection
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger, NotClaimed, ResultNotStored
from toolfleet_tasks.ledger.scripts import FINISH
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.redis_connection import RedisConnectionLost
from toolfleet_tasks.results.stored import read_stored, text_of
from toolfleet_tasks.results.verifier import ANNOUNCED_AT_MOST

CALL, READ, ONCE = published(), published(effect="read"), published(effect="once")


def shown(stored: str) -> tuple[str | None, str]:
    result = read_stored(stored, CALL.tool_name)
    return result.error_code, result.effect_state


async def listening(ear: PubSub) -> None:
    await ear.subscribe(RESULT)
    await announced(ear)  # Redis's word that it will tell


async def announced(ear: PubSub) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (heard := await ear.get_message(timeout=PATIENCE_SECONDS)):
            pass
    return str(heard["data"])


async def test_a_claim_begins_an_attempt(ledger: Ledger) -> None:
    """The first one, of which nothing is known yet."""
    claim = await begun(ledger, CALL)

    assert (claim.attempts, claim.so_far, claim.last, claim.log) == (1, "none", None, "")


async def test_nobody_else_may_run_it_meanwhile(ledger: Ledger, other: Ledger) -> None:
    """Another worker hears when the lease ends, and so does the same one: a second delivery is a second claim."""
    await begun(ledger, CALL)
    for asking in (other, ledger):
        answer = await refused(asking, CALL)
        assert answer.reason == "busy"
        assert 0 < answer.rest_seconds <= 60


async def test_a_lease_from_before_redis_was_set_back_ends_as_soon_as_any(
    ledger: Ledger, other: Ledger, redis: Redis
) -> None:
    """Its worker may have died: the call must not wait until the clock has come as far again."""
    await begun(ledger, READ)
    await redis.hset(RECORD, "lease", round((time.time() + 600) * 1000))

    assert (await refused(other, READ)).rest_seconds <= 60
    assert int(await redis.hget(RECORD, "lease") or 0) < (time.time() + 61) * 1000


async def test_a_claim_whose_answer_was_lost_for_long_begins_anew(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """Its lease has run out before it was sent again: whoever begins now has a whole one."""
    ledger.tokens._count = itertools.repeat(7)  # type: ignore[assignment] # so that a second claim is the first one, sent again
    await begun(ledger, ONCE)
    await run_out(redis)
    claim = await begun(ledger, ONCE)

    assert (claim.attempts, claim.log) == (1, "")
    assert (await refused(other, ONCE)).rest_seconds > ledger.claims.lease_ms / 2000


async def test_one_of_many_gets_it(ledger: Ledger, other: Ledger) -> None:
    """However many deliveries ask at once."""
    answers = await asyncio.gather(*(asking.claim(CALL) for asking in (ledger, other) * 20))

    assert sum(not isinstance(answer, NotClaimed) for answer in answers) == 1


async def test_a_call_that_is_done_is_never_begun_again(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """Whoever claims it gets the result that it ended with."""
    text = await finish(ledger, await begun(ledger, READ))
    for _ in range(3):
        answer = await refused(other, READ)
        assert answer == NotClaimed("done", result=str(await redis.get(RESULT)))
        assert text_of(answer.result) == text == json_text.dump(SUCCESS.result)


async def test_the_second_attempt_knows_of_the_first(ledger: Ledger, other: Ledger) -> None:
    """What it came to, what it may have done, and how long it took."""
    ended = attempt(Outcome.FAILED)
    assert await close(ledger, await begun(ledger, CALL), ended)
    claim = await begun(other, CALL)

    assert (claim.attempts, claim.so_far, claim.last, claim.log) == (2, "unknown", ended.result, "1 failed 12;")


@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_what_may_be_repeated_is_begun_again_after_a_crash(
    ledger: Ledger, other: Ledger, redis: Redis, effect: Effect
) -> None:
    """Once its worker's lease has run out. The attempt that was never closed may have done anything."""
    await begun(ledger, published(effect=effect))
    await run_out(redis)
    claim = await begun(other, published(effect=effect))

    assert (claim.attempts, claim.so_far, claim.log) == (2, "unknown", "1 never_closed 0;")


@pytest.mark.parametrize("effect", ["once", None])
async def test_what_must_not_be_repeated_is_never_begun_again_after_a_crash(
    ledger: Ledger, other: Ledger, redis: Redis, effect: Effect | None
) -> None:
    """Whoever gets it next may only end it, and the next one too, if that worker dies as well."""
    call = published(effect=effect)
    await begun(ledger, call)
    await run_out(redis)
    claim = await claimed(other, call)
    for _ in range(3):
        assert (claim.granted, claim.attempts, claim.so_far) == ("unknown", 1, "unknown")
        assert claim.log == "1 never_closed 0;"
        await run_out(redis)
        claim = await claimed(other, call)
    assert (await refused(ledger, call)).reason == "busy"
    assert await ledger.finish(claim, failed("outcome_unknown"))


async def test_what_was_fixed_at_the_first_claim_holds(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """A tool whose manifest says something else by now is judged as it was when its call was begun."""
    await begun(ledger, ONCE)
    await run_out(redis)

    assert (await claimed(other, READ)).granted == "unknown"


async def test_an_effect_that_nobody_declared_stays_undeclared(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """That, too, is fixed."""
    await begun(ledger, CALL)
    await run_out(redis)

    assert (await claimed(other, READ)).granted == "unknown"


async def test_after_two_attempts_the_last_result_is_the_end(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """Delivered once more, the call is not run, but ended as its second attempt did."""
    await close(ledger, await begun(ledger, READ), attempt(Outcome.FAILED))
    await close(other, await begun(other, READ), TURNED_AWAY)
    for _ in range(3):
        claim = await claimed(ledger, READ)
        assert (claim.granted, claim.attempts, claim.last) == ("exhausted", 2, TURNED_AWAY.result)
        assert claim.log == "1 failed 12;2 turned_away 12;"
        await run_out(redis)


async def test_after_two_attempts_of_which_one_was_lost_nobody_knows(ledger: Ledger, redis: Redis) -> None:
    """Also of a call that may be repeated: two is the most."""
    await close(ledger, await begun(ledger, READ), TURNED_AWAY)
    await begun(ledger, READ)
    await run_out(redis)
    claim = await claimed(ledger, READ)

    assert (claim.granted, claim.attempts, claim.so_far) == ("unknown", 2, "unknown")
    assert claim.log == "1 turned_away 12;2 never_closed 0;"


async def test_there_are_two_attempts_at_most(ledger: Ledger, redis: Redis) -> None:
    """However often the broker delivers a call whose workers die."""
    granted = list[str]()
    for _ in range(8):
        granted.append((await claimed(ledger, READ)).granted)
        await run_out(redis)

    assert granted == ["go", "go", *["unknown"] * 6]


async def held(redis: Redis) -> tuple[str, str, str]:
    """A message of the worker's."""
    unacked, index, tag = message = ("unacked", "unacked_index", "tag")
    await redis.hset(unacked, tag, "held")
    await redis.zadd(index, {tag: time.time()})
    return message


@pytest.mark.parametrize(
    "ended", [SUCCESS, attempt(Outcome.FAILED), TURNED_AWAY], ids=["done", "failed", "turned away"]
)
async def test_the_end_of_a_call_forgets_its_message(ledger: Ledger, redis: Redis, ended: Attempt) -> None:
    """In the same step; whatever the end is, and whatever the record has."""
    message, claim = await held(redis), await begun(ledger, CALL)
    assert await ledger.finish(claim, ended.result, attempt=ended, message=message)

    assert await redis.exists("unacked", "unacked_index") == 0
    assert await redis.exists(RESULT) == 1


async def test_an_end_that_is_refused_forgets_no_message(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """Others have the call, or have ended it: its worker acknowledges the message as one that came too late."""
    message, late = await held(redis), await begun(ledger, READ)
    await run_out(redis)
    now = await begun(other, READ)

    assert await ledger.finish(late, SUCCESS.result, attempt=SUCCESS, message=message) is None
    assert await finish(other, now)
    assert await ledger.finish(late, SUCCESS.result, attempt=SUCCESS, message=message) is None
    assert await redis.exists("unacked", "unacked_index") == 2


async def begun_many(ledger: Ledger, count: int, effect: Effect | None = None) -> list[Claim]:
    """Claims whose ends can leave together: Redis knows the script."""
    await ledger.connection.send("SCRIPT", "LOAD", FINISH.text)
    return [await begun(ledger, published(call_id=f"call-{number}", effect=effect)) for number in range(count)]


def counted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The commands that a ledger's ends leave in."""
    sent, send = list[object](), ledger.connection.send_built

    def noted(build: Callable[[], Any]) -> Any:
        sent.append(build)
        return send(build)

    monkeypatch.setattr(ledger.connection, "send_built", noted)
    return sent


async def test_ends_of_one_turn_leave_together_and_are_decided_each_by_itself(
    ledger: Ledger, other: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is true of one that leaves alone: of a stale one nothing is stored, and it takes nothing from the others."""
    claims = await begun_many(ledger, 6, "read")
    caller_limit = claims[0].keys.caller_limit
    for number, claim in enumerate(claims):
        await redis.hset("unacked", f"tag-{number}", "held")
        await redis.zadd("unacked_index", {f"tag-{number}": 5})
        await redis.zadd(caller_limit, {claim.call.call_id: time.time() + 60})
    await run_out(redis, "call-2")
    await begun(other, claims[2].call)
    ends = [SUCCESS, attempt(Outcome.FAILED), SUCCESS, TURNED_AWAY, attempt(Outcome.UNKNOWN, "timed_out"), SUCCESS]
    sent = counted(ledger, monkeypatch)
    texts = await asyncio.gather(
        *(
            ledger.finish(claim, end.result, attempt=end, message=("unacked", "unacked_index", f"tag-{number}"))
            for number, (claim, end) in enumerate(zip(claims, ends, strict=True))
        )
    )

    assert len(sent) == 1
    assert texts == [None if number == 2 else json_text.dump(end.result) for number, end in enumerate(ends)]
    for number, text in enumerate(texts):
        value = await redis.get(f"celery-task-meta-call-{number}")
        assert (text_of(str(value)) if value else None) == text
    assert await redis.hkeys("unacked") == await redis.zrange("unacked_index", 0, -1) == ["tag-2"]
    assert await redis.zrange(caller_limit, 0, -1) == ["call-2"]
    lines: Any = await redis.xrange(Keys().audit)
    assert [json.loads(entry["line"])["call_id"] for _, entry in lines] == [
        f"call-{number}" for number in (0, 1, 3, 4, 5)
    ]
    assert not ledger.claims._held
    await redis.delete("unacked", "unacked_index", caller_limit)


async def test_an_answer_of_a_module_forgives_what_fails_before_it_in_the_same_turn(
    ledger: Ledger, redis: Redis
) -> None:
    """As it does one after the other: whether the module has a breaker is looked up again once an end may have made it."""
    silent = attempt(Outcome.UNKNOWN, "timed_out")
    claims = await begun_many(ledger, 3)
    await asyncio.gather(
        *(
            ledger.finish(claim, end.result, attempt=end, seconds=1e9)
            for claim, end in zip(claims, (SUCCESS, silent, SUCCESS), strict=True)
        )
    )

    assert await redis.exists(Keys().breaker("research")) == 0


async def test_an_end_that_redis_cannot_store_takes_none_with_it(ledger: Ledger, redis: Redis) -> None:
    """It is sent again alone, and refused; the others have ended."""
    claims = await begun_many(ledger, 3)
    await redis.delete("toolfleet:call:call-1")
    await redis.set("toolfleet:call:call-1", "another program's", ex=60)
    caller_limit = claims[0].keys.caller_limit
    await redis.zadd(caller_limit, {claim.call.call_id: time.time() + 60 for claim in claims})
    done = await asyncio.gather(
        *(ledger.finish(claim, SUCCESS.result, attempt=SUCCESS) for claim in claims), return_exceptions=True
    )

    text = json_text.dump(SUCCESS.result)
    assert [done[0], type(done[1]), done[2]] == [text, ResultNotStored, text]
    assert await redis.zrange(caller_limit, 0, -1) == ["call-1"]
    await redis.delete(caller_limit)


async def test_ends_whose_answer_is_lost_are_sent_again(
    ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each alone, and each is still the one end of its call."""
    claims, send = await begun_many(ledger, 3), ledger.connection.send_built

    def losing(build: Callable[[], Any]) -> "asyncio.Future[Any]":
        async def lost() -> None:
            await send(build)
            raise RedisConnectionLost("gone", sent=True)

        return asyncio.ensure_future(lost())

    monkeypatch.setattr(ledger.connection, "send_built", losing)
    texts = await asyncio.gather(*(ledger.finish(claim, SUCCESS.result, attempt=SUCCESS) for claim in claims))

    assert texts == [json_text.dump(SUCCESS.result)] * 3
    assert await redis.xlen(Keys().audit) == 3


async def test_a_worker_that_gives_up_its_call_takes_no_other_end_with_it(ledger: Ledger) -> None:
    """Whichever of the ends that leave together it waits for."""
    for given_up in range(3):
        claims = [await begun(ledger, published(call_id=f"call-{given_up}-{number}")) for number in range(3)]
        ending = [
            asyncio.create_task(ledger.finish(claim, SUCCESS.result, attempt=SUCCESS, seconds=0)) for claim in claims
        ]
        await asyncio.sleep(0)
        ending[given_up].cancel()
        done = await asyncio.gather(*ending, return_exceptions=True)

        assert [isinstance(text, str) for text in done] == [number != given_up for number in range(3)]


@pytest.mark.parametrize(("count", "size", "scripts"), [(64, 1, 1), (65, 1, 2), (6, 50_000, 2)])
async def test_so_many_ends_or_bytes_leave_in_one_script(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, count: int, size: int, scripts: int
) -> None:
    """Redis does nothing else meanwhile."""
    claims, sent = await begun_many(ledger, count), counted(ledger, monkeypatch)
    result = ToolResult.ok(CALL.tool_name, "x" * size)
    await asyncio.gather(*(ledger.finish(claim, result, attempt=SUCCESS) for claim in claims))

    assert len(sent) == scripts


async def test_a_renewal_that_is_answered_with_an_end_loses_no_call(ledger: Ledger) -> None:
    """The script that renews finds the call ended; its worker has ended it itself."""
    lost = list[str]()
    claims = await begun_many(ledger, 3)

    async def end(claim: Claim) -> None:
        claim.on_lost = lambda: lost.append(claim.call.call_id)
        with holding(ledger.claims, claim):
            await ledger.finish(claim, SUCCESS.result, attempt=SUCCESS)

    ending = asyncio.gather(*map(end, claims))
    await asyncio.sleep(0)
    ledger.claims._renew()
    await ending

    assert lost == []


async def test_a_late_result_is_nobodys(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """A worker that was frozen for longer than its lease stores nothing, before or after the other one has ended."""
    late = await begun(ledger, READ)
    await run_out(redis)
    now = await begun(other, READ)

    assert await finish(ledger, late) is None
    assert await close(ledger, late) is False
    assert await redis.exists(RESULT) == 0
    stored = await finish(other, now, attempt(Outcome.FAILED))
    assert stored is not None
    assert await finish(ledger, late) is None
    assert await close(ledger, late) is False
    assert text_of(str(await redis.get(RESULT))) == stored


async def test_a_late_result_is_nobodys_while_the_call_waits_for_its_retry(
    ledger: Ledger, other: Ledger, redis: Redis
) -> None:
    """Somebody else's attempt has been closed since."""
    late = await begun(ledger, READ)
    await run_out(redis)
    await close(other, await begun(other, READ))

    assert await finish(ledger, late) is None
    assert await redis.exists(RESULT) == 0
    assert (await claimed(other, READ)).granted == "exhausted"


async def test_a_retry_that_could_not_be_published_ends_the_call(ledger: Ledger, redis: Redis) -> None:
    """The attempt is closed and counted once; its worker may still end the call."""
    claim = await begun(ledger, CALL)
    await close(ledger, claim)

    assert await ledger.finish(claim, TURNED_AWAY.result) == json_text.dump(TURNED_AWAY.result)
    assert await redis.hget(RECORD, "log") == "1 turned_away 12;"


async def test_who_has_closed_an_attempt_leaves_the_next_one_alone(ledger: Ledger, other: Ledger) -> None:
    """A retry that was thought lost has been begun: only its worker may end the call."""
    first = await begun(ledger, CALL)
    await close(ledger, first)
    second = await begun(other, CALL)

    assert await ledger.finish(first, TURNED_AWAY.result) is None
    assert await finish(other, second) is not None


async def test_the_end_is_written_at_once(ledger: Ledger, redis: Redis) -> None:
    """Record, Celery's result and its announcement, in one step; all of it expires."""
    claim = await begun(ledger, CALL)
    async with redis.pubsub() as ear:
        await listening(ear)
        text = await finish(ledger, claim)
        heard = await announced(ear)
        assert heard == await redis.get(RESULT)
        await redis.publish(RESULT, "what comes next")
        assert await announced(ear) == "what comes next", "it is announced once"

    meta = json.loads(heard)
    assert (meta["status"], meta["result"], meta["task_id"]) == ("SUCCESS", text, "call-1")
    assert await redis.hget(RECORD, "state") == "done"
    assert await redis.hget(RECORD, "token") is None
    assert 0 < await redis.ttl(RESULT) <= 6 * 3600


async def test_a_large_result_is_announced_by_its_id(ledger: Ledger, redis: Redis) -> None:
    """Whoever waits for it fetches it."""
    claim, result = await begun(ledger, CALL), ToolResult.ok(CALL.tool_name, "x" * ANNOUNCED_AT_MOST)
    async with redis.pubsub() as ear:
        await listening(ear)
        await ledger.finish(claim, result, attempt=SUCCESS)
        heard = await announced(ear)

    assert json.loads(heard) == {"status": "STORED", "task_id": "call-1"}
    assert read_stored(str(await redis.get(RESULT)), CALL.tool_name) == result


async def test_with_celerys_own_backend_the_record_holds_the_result(
    redis: Redis, redis_url: str, repeats: bool
) -> None:
    """Celery writes its copy afterwards, or the next worker, if this one dies before."""
    async with worker_ledger(redis_url, repeats=repeats, writes_results=False) as ledger:
        text = await finish(ledger, await begun(ledger, CALL))

        assert await redis.exists(RESULT) == 0
        assert await refused(ledger, CALL) == NotClaimed("done", result=text or "")
        assert await ledger.end(CALL, ENDING, data_id=ANY_DATA) == text


@pytest.mark.parametrize(
    ("so_far", "code", "effect_state"),
    [("none", "timed_out", "none"), ("unknown", "timed_out", "unknown"), ("done", "timed_out", "unknown")],
)
async def test_an_end_from_outside_says_what_closed_attempts_did(
    ledger: Ledger, redis: Redis, so_far: EffectState, code: str, effect_state: str
) -> None:
    """A call that waits for its retry ends by what its first attempt may have done: a dead letter, if that is not nothing."""
    await close(ledger, await begun(ledger, CALL), attempt(Outcome.FAILED, effect_state=so_far))

    assert shown(await ledger.end(CALL, ENDING, data_id=ANY_DATA)) == (code, effect_state)
    assert await redis.hkeys(Keys().dead) == ([] if effect_state == "none" else [CALL.call_id])


async def test_an_end_from_outside_of_a_call_that_runs_is_unknown(ledger: Ledger, other: Ledger, redis: Redis) -> None:
    """Its worker may still be at it, or has died; what it comes to is late."""
    claim = await begun(ledger, CALL)
    stored = await other.end(CALL, ENDING, data_id=ANY_DATA)

    assert shown(stored) == ("timed_out", "unknown")
    assert await finish(ledger, claim) is None
    assert await close(ledger, claim) is False
    assert (await refused(other, CALL)).result == stored == await redis.get(RESULT)


async def test_a_call_that_was_never_begun_ends_as_that(ledger: Ledger) -> None:
    """It is not begun any more, whenever a worker gets its message."""
    stored = await ledger.end(CALL, ENDING, data_id=ANY_DATA)

    assert shown(stored) == ("expired", "none")
    assert (await refused(ledger, CALL)).result == stored


@pytest.mark.parametrize("data_id", [None, "others"])
async def test_no_record_may_be_a_lost_one(ledger: Ledger, redis: Redis, data_id: str | None) -> None:
    """Nothing is sure where whoever asks knows of another server, or where Redis has not the data that it had then."""
    if data_id is not None:
        await redis.set(Keys().data_id, data_id)
    for name in ("", "these"):
        stored = await ledger.end(published(call_id=f"lost-{name}"), ENDING, data_id=name)
        assert shown(stored) == ("timed_out", "unknown")

    await redis.set(Keys().data_id, "these")
    assert shown(await ledger.end(CALL, ENDING, data_id="these")) == ("expired", "none")


async def test_a_call_ends_once(ledger: Ledger, other: Ledger) -> None:
    """Whoever comes later gets the first one's result: a worker's, or an end from outside."""
    text = await finish(ledger, await begun(ledger, CALL))
    assert text_of(await other.end(CALL, ENDING, data_id=ANY_DATA)) == text
    second = published(call_id="call-2")
    stored = await ledger.end(second, ENDING, data_id=ANY_DATA)

    assert await other.end(second, ENDING, data_id="") == stored


async def test_a_refused_message_ends_its_call(ledger: Ledger, redis: Redis) -> None:
    """Nothing but the id is known of it, and it was not begun."""
    stored = await ledger.refuse("call-1", failed("permission_denied", "none"))

    assert shown(str(stored)) == ("permission_denied", "none")
    assert (await refused(ledger, CALL)).result == stored == await redis.get(RESULT)


async def test_a_refused_message_does_not_end_a_call_that_was_begun(ledger: Ledger) -> None:
    """The true message has been here: neither a forged one nor one that is not confirmed ends its call."""
    claim = await begun(ledger, CALL)

    assert await ledger.refuse("call-1", failed("permission_denied", "none")) is None
    assert await ledger.withdraw(CALL, ENDING, data_id=ANY_DATA) is None
    assert await finish(ledger, claim) is not None


async def test_a_begun_call_may_end_as_unknown_though_it_is_refused(ledger: Ledger) -> None:
    """It is late, and may not be made any more: one that was not begun is refused then."""
    unheard = failed("outcome_unknown", "unknown")
    await begun(ledger, CALL)
    stored = await ledger.refuse("call-1", failed("permission_denied", "none"), begun=unheard)
    other = await ledger.refuse("call-2", failed("permission_denied", "none"), begun=unheard)

    assert (shown(str(stored)), shown(str(other))) == (("outcome_unknown", "unknown"), ("permission_denied", "none"))


async def test_a_call_is_withdrawn_unless_it_was_begun(ledger: Ledger) -> None:
    """One of which the broker did not say whether it has it is never begun after that."""
    stored = await ledger.withdraw(CALL, ENDING, data_id=ANY_DATA)

    assert shown(str(stored)) == ("expired", "none")
    assert (await refused(ledger, CALL)).result == stored


async def test_a_result_outlives_the_loss_of_its_record(ledger: Ledger, redis: Redis) -> None:
    """Redis has come back without its data, and nobody else has the call: what was seen is stored."""
    claim = await begun(ledger, CALL)
    await redis.flushall()
    assert await finish(ledger, claim) is not None

    second = await begun(ledger, published(call_id="call-2"))
    await redis.flushall()
    assert await close(ledger, second)
    assert (await begun(ledger, published(call_id="call-2"))).attempts == 2


async def test_where_a_call_is(ledger: Ledger) -> None:
    """From its queue to its end."""
    seen = [await ledger.state_of("call-1")]
    claim = await begun(ledger, CALL)
    seen.append(await ledger.state_of("call-1"))
    await close(ledger, claim)
    seen.append(await ledger.state_of("call-1"))
    await finish(ledger, await begun(ledger, CALL))
    seen.append(await ledger.state_of("call-1"))

    assert seen == ["queued", "running", "retrying", "done"]


async def test_a_record_outlives_its_calls_deadline(ledger: Ledger, redis: Redis) -> None:
    """As long as a message of it may be delivered, also after its end; a short call's lives as long as its result."""
    long, short = published(deadline_at=time.time() + 10 * 3600), published(call_id="call-2")
    claim = await begun(ledger, long)
    ttls = [await redis.ttl(RECORD)]
    await close(ledger, claim)
    ttls.append(await redis.ttl(RECORD))
    await finish(ledger, await begun(ledger, long))
    ttls.append(await redis.ttl(RECORD))
    await ledger.end(short, ENDING, data_id=ANY_DATA)

    assert all(10 * 3600 < ttl <= 10 * 3600 + 60 for ttl in ttls)
    assert 5 * 3600 < await redis.ttl("toolfleet:call:call-2") <= 6 * 3600


async def test_everything_stands_under_the_fleets_prefix(redis: Redis, redis_url: str) -> None:
    """Two fleets on one Redis have nothing in common."""
    async with worker_ledger(redis_url, key_prefix="acme:") as ledger:
        await finish(ledger, await begun(ledger, CALL))
    names = await redis.keys()
    await redis.flushall()

    assert sorted(names) == ["acme:celery-task-meta-call-1", "acme:toolfleet:audit", "acme:toolfleet:call:call-1"]


@pytest.mark.parametrize("fault", ["frozen", "restarted", "full"])
async def test_no_call_is_run_while_the_ledger_is_away(
    faulty: FaultyRedis, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim waits until Redis is back, and is granted then. So does the result, but for one that full memory still takes."""
    for name, seconds in (("_PATIENCE_SECONDS", 0.01), ("_BEAT_SECONDS", 0.1), ("_HALF_OPEN_SECONDS", 0.3)):
        monkeypatch.setattr(redis_connection, name, seconds)
    async with worker_ledger(faulty.url) as ledger:
        faulty.look.config_resetstat()
        with getattr(faulty, fault)():
            task = asyncio.create_task(begun(ledger, CALL))
            await wait_until(lambda: is_without_answer(ledger, faulty, fault), "it is held")
            assert not task.done()
        claim = await asyncio.wait_for(task, 2 * PATIENCE_SECONDS)
        faulty.look.config_resetstat()
        with getattr(faulty, fault)():
            ending = asyncio.create_task(finish(ledger, claim))
            await wait_until(lambda: ending.done() or is_without_answer(ledger, faulty, fault), "it is held, or taken")
            assert fault == "full" or not ending.done()
        text = await asyncio.wait_for(ending, 2 * PATIENCE_SECONDS)

        assert text == json_text.dump(SUCCESS.result)
        assert text_of(str(faulty.look.get(RESULT))) == text


def is_without_answer(ledger: Ledger, faulty: FaultyRedis, fault: str) -> bool:
    """Whether what was asked was refused, and asked again; where nothing answers, whether that is known."""
    if fault == "full":
        return faulty.refusals() > 1
    return not ledger.connection.is_connected


async def test_a_result_that_redis_refuses_is_not_recorded(faulty: FaultyRedis) -> None:
    """Its call is still open, and ends with another result."""
    faulty.look.config_set("proto-max-bulk-len", 2**20)
    async with worker_ledger(faulty.url) as ledger:
        claim = await begun(ledger, CALL)
        with pytest.raises(ResultNotStored, match="Redis refuses to store the result"):
            await ledger.finish(claim, ToolResult.ok(CALL.tool_name, "x" * 2**21), attempt=SUCCESS)
        assert faulty.look.exists(RESULT) == 0
        await wait_until(lambda: ledger.claims._connection.is_connected, "the line stands again")

        assert await ledger.finish(claim, failed("result_too_large", "done"), attempt=SUCCESS)
        assert faulty.look.hget(RECORD, "log") == "1 success 0;"


async def test_a_record_of_a_newer_version_is_left_to_newer_workers(ledger: Ledger, redis: Redis) -> None:
    """Nobody here knows what its fields mean: there is no claim, and nothing changes."""
    await redis.hset(RECORD, mapping={"v": json_text.VERSION + 1, "tide": "high"})

    assert (await refused(ledger, CALL)).reason == "newer"
    assert await redis.hgetall(RECORD) == {"v": str(json_text.VERSION + 1), "tide": "high"}
    await redis.expire(RECORD, 60)


async def test_what_celery_writes_where_a_result_was_dropped_is_no_result(ledger: Ledger, redis: Redis) -> None:
    """Stock parts write that they have revoked the call, whose message came late: who claims it then, or ends it, gets nothing."""
    await ledger.end(CALL, ENDING, data_id=ANY_DATA)
    await redis.set(RESULT, json.dumps({"status": "REVOKED", "result": {"exc_type": "TaskRevokedError"}}), ex=60)

    assert (await refused(ledger, CALL)).result == ""
    assert await ledger.end(CALL, ENDING, data_id=ANY_DATA) == ""
