"""Calls of one line: which runs, which waits, and when a turn passes on. Every fact holds as well when each script is sent twice."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.workers.ledgers import (
    ENDING,
    TURNED_AWAY,
    RepeatingConnection,
    attempt,
    begun,
    claimed,
    close,
    finish,
    holding,
    refused,
    run_out,
)
from toolfleet_registry.contracts import PublishedCall, Terms, Turn
from toolfleet_registry.contracts.attempts import Acceptance, Attempt, Outcome
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.admission import ADMIT_TURN, LEAVE, AdmissionControl, Refusal
from toolfleet_tasks.ledger.claims import AcceptedAttempt, Claim
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.ledger.parameters import heard
from toolfleet_tasks.scripts import script
from toolfleet_tasks.turns import ENTER, SWEEP

LINE, QUEUE = "research:0f", "tools.research"
KEYS = Keys()
MOVE = script("jobs/move")
UNKNOWN = attempt(Outcome.UNKNOWN, "module_error")
FAILED = attempt(Outcome.FAILED, "module_error")


def call(name: str, limit: int = 1, **fields: Any) -> PublishedCall:
    return published(call_id=name, user_id=name, turn=Turn(line=LINE, limit=limit), **fields)


async def admit(
    ledger: Ledger, *calls: PublishedCall, again: bool = False, most: int = 1000, now: float | None = None
) -> list[Refusal | None]:
    admission, refusals = AdmissionControl(Settings(backlog_limit=most)), list[Refusal | None]()
    for one in calls:
        script, parameters = admission.build_command(
            one, now=now or fleet_clock.now(), message=one.call_id, limit=most, again=again
        )
        refusals.append(admission.parse_reply(one, await ledger.connection.send("EVAL", script.text, *parameters)))
    return refusals


async def enter(ledger: Ledger, one: PublishedCall) -> str:
    """A worker has the call's message, and it has not its turn."""
    assert one.turn is not None
    parameters = ENTER.parameters(
        record=KEYS.call(one.call_id),
        base=KEYS.begin,
        call_id=one.call_id,
        job_id=one.job_id or "",
        line=one.turn.line,
        limit=one.turn.limit,
        deadline_ms=round(one.deadline_at * 1000),
        now_ms=round(fleet_clock.now() * 1000),
        queue=QUEUE,
        place="here",
        message=one.call_id,
    )
    return str((await ledger._run(ENTER, parameters)).decode())


async def sweep(ledger: Ledger, *, later: float = 0) -> Sequence[bytes]:
    """What workers do now and then; so many seconds from now."""
    now_ms = round((fleet_clock.now() + later) * 1000)
    names = {"lines": KEYS.lines, "outbox": KEYS.line_outbox, "base": KEYS.begin}
    command = SWEEP.command(**names, now_ms=now_ms, most=100, again_ms=20_000)
    _, *found = await ledger.connection.send(*command)
    return list[bytes](found)


async def taken(redis: Redis) -> list[Any]:
    """The messages that are in the queue, the next one first: they are taken out."""
    found = await redis.lrange(QUEUE, 0, -1)
    await redis.delete(QUEUE)
    return found[::-1]


async def left(redis: Redis) -> list[Any]:
    """What is kept of turns and lines."""
    names = [await redis.keys(KEYS.begin + kind) for kind in ("turns:*", "line*", "turn-of:*")]
    return sorted(key for found in names for key in found)


async def test_calls_of_a_line_run_one_after_the_other_as_they_were_let_in(ledger: Ledger, redis: Redis) -> None:
    """Of all users; those that wait are in no queue, count among their users' calls, and nothing is left behind the last."""
    one, two, three = calls = [call(name) for name in ("b", "a", "c")]
    assert await admit(ledger, *calls) == [None] * 3
    assert await taken(redis) == ["b"]
    assert [await redis.zcard(KEYS.caller_limit("fast", name)) for name in "abc"] == [1, 1, 1]
    assert await redis.exists(KEYS.notify_key(QUEUE))
    assert await redis.ttl(KEYS.lines) > 60

    for each, then in ((one, ["a"]), (two, ["c"]), (three, [])):
        claim = await begun(ledger, each)
        assert await taken(redis) == []
        await finish(ledger, claim)
        assert await taken(redis) == then
    assert await left(redis) == []


async def test_as_many_run_as_a_call_lets_run(ledger: Ledger, redis: Redis) -> None:
    """Each call has its own tool's limit, and none overtakes one that was let in before it."""
    calls = [call("a", 2), call("b", 2), call("c", 1), call("d", 3)]
    await admit(ledger, *calls)
    assert await taken(redis) == ["a", "b"]
    await finish(ledger, await begun(ledger, calls[0]))
    assert await taken(redis) == []
    await finish(ledger, await begun(ledger, calls[1]))
    assert await taken(redis) == ["c", "d"]


async def test_calls_that_wait_count_in_their_queues_backlog(ledger: Ledger, redis: Redis) -> None:
    """In all lines together, and their bytes. What is refused waits nowhere, and counts for nobody; what leaves makes room."""
    calls = [call(name).model_copy(update={"turn": Turn(line=f"research:{name in 'ab'}")}) for name in "abcdef"]
    refusals = await admit(ledger, *calls[:4], most=4)
    assert refusals == [None] * 4  # two of them wait
    (refusal,) = await admit(ledger, calls[4], most=4)
    assert refusal is not None
    assert (refusal.kind, refusal.count) == ("backlog", 4)
    assert not await redis.exists(KEYS.turn_of("e"), KEYS.caller_limit("fast", "e"))
    await ledger.end(calls[1], ENDING, data_id=ANY_DATA)
    await ledger.end(calls[2], ENDING, data_id=ANY_DATA)
    assert not await redis.exists(KEYS.line_load(QUEUE))

    await admit(ledger, calls[4])
    await redis.hincrby(KEYS.line_load(QUEUE), "bytes", 2**40)
    (refusal,) = await admit(ledger, calls[5])
    assert refusal is not None
    assert (refusal.kind, refusal.count > 2**40) == ("bytes", True)


async def test_a_call_that_waits_counts_in_its_limits_until_it_is_cancelled(ledger: Ledger, redis: Redis) -> None:
    """Then it leaves the line, and what came after it moves up."""
    one, two, three = call("a"), call("b", terms=Terms(daily_limit=1)), call("c")
    await admit(ledger, one, two, three)
    assert await redis.zcard(KEYS.limit("b", "research.search_docs")) == 1
    await ledger.end(two, ENDING, data_id=ANY_DATA)
    assert not await redis.exists(KEYS.limit("b", "research.search_docs"))
    await taken(redis)
    await finish(ledger, await begun(ledger, one))

    assert await taken(redis) == ["c"]
    await ledger.end(three, ENDING, data_id=ANY_DATA)  # in its queue, with its turn
    assert await left(redis) == []


async def test_a_call_whose_deadline_is_over_takes_no_turn(ledger: Ledger, redis: Redis) -> None:
    """It comes to a worker, which ends it, and the next one runs."""
    late = call("b", deadline_at=fleet_clock.now() + 5)
    await admit(ledger, call("a"), late, call("c"))
    await taken(redis)
    await sweep(ledger, later=6)
    assert await taken(redis) == ["b"]
    assert await redis.zrange(KEYS.turns(LINE), 0, -1) == ["a"]
    await ledger.end(late, ENDING, data_id=ANY_DATA)
    await ledger.end(call("a"), ENDING, data_id=ANY_DATA)
    assert await taken(redis) == ["c"]


async def test_a_call_that_is_published_again_is_where_it_was(ledger: Ledger, redis: Redis) -> None:
    """Its agent has heard no answer. After a flush it is put back, behind what has come meanwhile."""
    await admit(ledger, call("a"), call("b"), call("c"))
    await admit(ledger, call("b"), call("c"), again=True)
    await admit(ledger, call("b"))  # as a job does with a step of which nothing is known
    assert await redis.zrange(KEYS.line(LINE), 0, -1) == ["b", "c"]
    assert await taken(redis) == ["a"]
    await redis.flushdb()
    await admit(ledger, call("c"), call("b"), again=True)
    assert (await taken(redis), await redis.zrange(KEYS.line(LINE), 0, -1)) == (["c"], ["b"])


@pytest.mark.parametrize(("end", "passes"), [(FAILED, True), (TURNED_AWAY, True), (UNKNOWN, False)])
async def test_a_turn_passes_on_when_the_module_has_answered(
    ledger: Ledger, redis: Redis, end: Attempt, *, passes: bool
) -> None:
    """An attempt whose end nobody saw may go on: then it passes on when that is over, in its lease and its limit."""
    await admit(ledger, call("a"), call("b"))
    await taken(redis)
    await finish(ledger, await begun(ledger, call("a")), end)
    assert await taken(redis) == (["b"] if passes else [])
    await sweep(ledger, later=44)
    assert await taken(redis) == []
    await sweep(ledger, later=46)
    assert await taken(redis) == ([] if passes else ["b"])


@pytest.mark.parametrize("after", [FAILED, UNKNOWN])
async def test_a_retry_keeps_its_turn(ledger: Ledger, redis: Redis, after: Attempt) -> None:
    """And its second attempt passes it on."""
    await admit(ledger, call("a", effect="read"), call("b"))
    await taken(redis)
    await close(ledger, await begun(ledger, call("a", effect="read")), after)
    await sweep(ledger, later=31)
    assert await taken(redis) == []
    await finish(ledger, await begun(ledger, call("a", effect="read")))
    assert await taken(redis) == ["b"]


async def test_a_killed_workers_turn_passes_on(ledger: Ledger, redis: Redis) -> None:
    """When its call has its end, and what it has sent to the module is over."""
    one = call("a")
    await admit(ledger, one, call("b"))
    await taken(redis)
    await begun(ledger, one)
    await run_out(redis, "a")
    claim = await claimed(ledger, one)
    assert claim.granted == "unknown"
    await finish(ledger, claim, UNKNOWN)
    assert await taken(redis) == []
    await sweep(ledger, later=46)
    assert await taken(redis) == ["b"]


async def test_a_call_that_ends_without_an_attempt_passes_its_turn_on(ledger: Ledger, redis: Redis) -> None:
    """Two workers have died with it, say, or its module is away."""
    await admit(ledger, call("a"), call("b"))
    await taken(redis)
    claim = await ledger.claim(call("a"), deaths=2)
    assert isinstance(claim, Claim)
    assert claim.granted == "killed"
    await finish(ledger, claim, TURNED_AWAY)
    assert await taken(redis) == ["b"]


async def test_a_running_call_that_is_cancelled_keeps_its_turn_while_its_module_is_at_it(
    ledger: Ledger, redis: Redis
) -> None:
    """The end from outside knows no more than that it was begun."""
    await admit(ledger, call("a"), call("b"))
    await taken(redis)
    await begun(ledger, call("a"))
    await ledger.end(call("a"), ENDING, data_id=ANY_DATA)
    assert await taken(redis) == []
    await sweep(ledger, later=46)
    assert await taken(redis) == ["b"]


async def test_a_call_that_was_let_in_without_a_line_waits_when_a_worker_has_it(ledger: Ledger, redis: Redis) -> None:
    """Its agent is older. It takes the turn that is free; no attempt begins without."""
    await admit(ledger, call("a"))
    assert (await refused(ledger, call("b"))).reason == "behind"
    assert await enter(ledger, call("b")) == "waits"
    assert not await redis.exists(KEYS.call("b"))
    await taken(redis)
    await finish(ledger, await begun(ledger, call("a")))
    assert await taken(redis) == ["b"]
    await finish(ledger, await begun(ledger, call("b")))
    assert await enter(ledger, call("c")) == "taken"
    await finish(ledger, await begun(ledger, call("c")))
    assert await left(redis) == []


async def test_a_call_that_lost_its_turn_is_the_next_one(ledger: Ledger, redis: Redis) -> None:
    """It comes back to where it was let in."""
    await admit(ledger, call("a"), call("b"), call("c"))
    await redis.zadd(KEYS.turns(LINE), {"x": (fleet_clock.now() + 60) * 1000})
    await redis.zrem(KEYS.turns(LINE), "a")
    assert await enter(ledger, call("a")) == "waits"
    assert await redis.zrange(KEYS.line(LINE), 0, -1) == ["a", "b", "c"]


async def test_an_end_by_an_older_process_is_found(ledger: Ledger, redis: Redis) -> None:
    """It knows of no turns: the call's next message, or a look at the line, passes its turn on."""
    await admit(ledger, *(call(name, deadline_at=fleet_clock.now() + 3600) for name in "abc"))
    for name, then in (("a", "b"), ("b", "c")):
        await taken(redis)
        claim = await begun(ledger, call(name))
        await redis.hset(claim.keys.record, mapping={"state": "done", "log": "1 success 5;"})
        if name == "a":
            assert (await refused(ledger, call(name))).reason == "done"
        else:
            await sweep(ledger, later=301)
        assert await taken(redis) == [then]


async def test_a_call_that_has_ended_enters_no_line(ledger: Ledger, redis: Redis) -> None:
    """Its agent has cancelled it while its worker was about to have it wait."""
    await admit(ledger, call("a"))
    await ledger.end(call("b"), ENDING, data_id=ANY_DATA)
    assert await enter(ledger, call("b")) == "ended"
    assert not await redis.exists(KEYS.line(LINE), KEYS.turn_of("b"))


async def test_what_other_brokers_are_to_publish_waits_for_them(ledger: Ledger, redis: Redis) -> None:
    """A message that nobody has confirmed comes again."""
    admission = AdmissionControl(Settings())
    answers = [await admission.ask(ledger.connection, call(name)) for name in "ab" for _ in range(2)]
    assert [answer and answer.kind for answer in answers] == [None, None, "waits", "waits"]
    await finish(ledger, await begun(ledger, call("a")))
    (message,) = await sweep(ledger)
    assert message.startswith(b'tools.research {"body":')
    assert await sweep(ledger) == []
    assert await sweep(ledger, later=21) == [message]


async def test_a_call_that_is_taken_back_gives_its_turn_back(ledger: Ledger, redis: Redis) -> None:
    """It was let in, and surely not published."""
    admission = AdmissionControl(Settings())
    for name in "ab":
        await admission.ask(ledger.connection, call(name))
    await admission.retract(ledger.connection, call("a"))
    assert len(await sweep(ledger)) == 1
    await admission.retract(ledger.connection, call("b"))
    assert [key for key in await left(redis) if key != KEYS.line_outbox] == []


async def test_the_clock_may_be_set(ledger: Ledger, redis: Redis) -> None:
    """Back: who comes later is behind all the same."""
    await admit(ledger, call("a"), call("b"))
    await redis.zadd(KEYS.line(LINE), {"b": (fleet_clock.now() + 3600) * 1e6})
    await admit(ledger, call("c"))
    assert await redis.zrange(KEYS.line(LINE), 0, -1) == ["b", "c"]


async def test_calls_of_a_jobs_end_take_turns(ledger: Ledger, redis: Redis) -> None:
    """Their ids look like those of a job's steps. A step of a job that goes on runs in the job's turn, and no other call does."""
    await admit(ledger, call("j.then.0"), call("x"), call("j.then.1"))
    assert await taken(redis) == ["j.then.0"]
    assert (await refused(ledger, call("j.then.1"))).reason == "behind"

    await redis.flushdb()
    await admit(ledger, call("j.0", job_id="j"))
    await redis.hset(KEYS.job("j"), mapping={"at": "x"})
    await admit(ledger, call("j.1", job_id="j"), call("j.2"))
    assert await taken(redis) == ["j.0", "j.1"]


async def test_a_step_of_a_job_waits_for_an_end_that_nobody_saw(ledger: Ledger, redis: Redis) -> None:
    """The job has ended with it."""
    await admit(ledger, call("j.0", job_id="j"))
    await taken(redis)
    await finish(ledger, await begun(ledger, call("j.0", job_id="j")), UNKNOWN)
    await admit(ledger, call("j.1", job_id="j"))
    assert await taken(redis) == []


async def test_a_call_that_runs_has_its_turn_again_after_redis_has_lost_it(ledger: Ledger, redis: Redis) -> None:
    """Its worker renews its lease: what is let in then waits for it, and has its turn after it."""
    await admit(ledger, call("a"))
    claim = await begun(ledger, call("a"))
    with holding(ledger.claims, claim):
        await redis.flushdb()
        assert await ledger.claims.renewed(claim)
        await admit(ledger, call("b"))
        assert await taken(redis) == []
    await finish(ledger, claim)
    assert await taken(redis) == ["b"]
    await ledger.end(call("b"), ENDING, data_id=ANY_DATA)
    assert await left(redis) == []


async def test_a_server_clock_that_was_set_forward_makes_no_call_late(ledger: Ledger, redis: Redis) -> None:
    """The fleet's time goes on as before: the end of a call passes one turn on, to the first that waits."""
    there = fleet_clock.now() - 3600
    calls = [call(name, deadline_at=there + 60) for name in "abc"]
    await admit(ledger, *calls, now=there)
    await taken(redis)
    await finish(ledger, await begun(ledger, calls[0]))
    assert await taken(redis) == ["b"]
    assert (await refused(ledger, calls[2])).reason == "behind"


async def test_a_call_is_in_one_line_at_a_time(ledger: Ledger, redis: Redis) -> None:
    """Workers whose tools have different keys compute different lines, while a module is upgraded."""
    other = Turn(line="research:ff", limit=1)
    one, same, next_one = call("a"), call("a").model_copy(update={"turn": other}), call("b")
    assert await enter(ledger, one) == "taken"
    await admit(ledger, next_one, call("c").model_copy(update={"turn": other}))
    assert await taken(redis) == ["c"]
    assert await enter(ledger, same) == "waits"
    assert await taken(redis) == ["b"]
    await finish(ledger, await begun(ledger, call("c").model_copy(update={"turn": other})))
    await finish(ledger, await begun(ledger, same))
    await finish(ledger, await begun(ledger, next_one))
    assert await left(redis) == []


async def test_a_line_is_rid_of_a_call_that_has_ended_elsewhere(ledger: Ledger, redis: Redis) -> None:
    """Also where nothing says any more in which line it was."""
    later = fleet_clock.now() + 3600
    await admit(ledger, call("a", deadline_at=later), call("b", deadline_at=later))
    await taken(redis)
    claim = await begun(ledger, call("a"))
    await redis.hset(claim.keys.record, mapping={"state": "done", "log": ""})
    await redis.delete(KEYS.turn_of("a"))
    await sweep(ledger, later=301)
    assert await taken(redis) == ["b"]


async def test_what_the_module_says_after_a_call_was_cancelled_passes_its_turn_on(ledger: Ledger, redis: Redis) -> None:
    """Only the answer of the attempt that was open then, and only if it says how that has ended."""
    one = call("a", limit_seconds=300, deadline_at=fleet_clock.now() + 3600)
    await admit(ledger, one, call("b", deadline_at=fleet_clock.now() + 3600))
    await taken(redis)
    claim = await begun(ledger, one)
    await ledger.end(one, ENDING, data_id=ANY_DATA)
    await finish(ledger, claim, UNKNOWN)
    assert await taken(redis) == []
    await finish(ledger, claim)
    assert await taken(redis) == ["b"]


async def test_a_cancelled_call_of_a_module_that_goes_on_with_it_keeps_its_turn_until_that_says_it_is_over(
    ledger: Ledger, redis: Redis
) -> None:
    """Its worker tells the module, which answers that."""
    one = call("a", limit_seconds=30, deadline_at=fleet_clock.now() + 86400)
    await admit(ledger, one, call("b", deadline_at=fleet_clock.now() + 86400))
    await taken(redis)
    claim = await begun(ledger, one)
    accepted = AcceptedAttempt.of(Acceptance(handle="h"), begun_at=fleet_clock.now())
    await ledger.waiting.park(claim, accepted, heard("accepted", 0.1), seconds=1)
    await ledger.end(one, ENDING, data_id=ANY_DATA)
    await sweep(ledger, later=3600)
    assert await taken(redis) == []
    await ledger._run(LEAVE, LEAVE.parameters(record=KEYS.call("a"), base=KEYS.begin, call_id="a"))
    assert await taken(redis) == ["b"]


async def move(ledger: Ledger, before: str, after: str, due_ms: int | str = "", *, end: str = "") -> None:
    """A job goes on to its next call, or ends."""
    keys = KEYS.job("j"), KEYS.jobs_due, KEYS.jobs_of(None), KEYS.jobs_ended_of(None), KEYS.jobs_ended
    parameters = MOVE.parameters_of(
        (*keys, KEYS.wakes_due, KEYS.clock),
        **dict.fromkeys(("poll_values", "is_sent", "end_signature", "is_cancelled", "stops"), ""),
        **dict.fromkeys(("kept_seconds", "ended_kept", "completion_seconds"), 100),
        id="j",
        before=before,
        after=after,
        due_ms=due_ms,
        job_end=end,
        spec="s",
        keeps_turn="" if end else "1",
        events=[],
    )
    assert await ledger._run(MOVE, parameters) == 1


async def polled_job(ledger: Ledger, redis: Redis) -> None:
    """A job whose first call has ended, and a call that waits for its turn."""
    await redis.hset(KEYS.job("j"), mapping={"at": "x"})
    await redis.zadd(KEYS.jobs_due, {"j": 1})
    await admit(ledger, call("j.0", job_id="j"), call("b", deadline_at=fleet_clock.now() + 86400))
    await taken(redis)
    await finish(ledger, await begun(ledger, call("j.0", job_id="j")))
    await move(ledger, "x", "y", round((fleet_clock.now() + 3600) * 1000))


async def test_a_job_keeps_its_turn_while_nothing_moves_it(ledger: Ledger, redis: Redis) -> None:
    """As beat is away, for longer than the turn was given for."""
    await polled_job(ledger, redis)

    assert await sweep(ledger, later=3600 + 660) == []
    assert await taken(redis) == []


async def test_a_job_whose_first_calls_record_has_expired_gives_its_turn_back(ledger: Ledger, redis: Redis) -> None:
    """It goes on for longer than results are kept."""
    await polled_job(ledger, redis)
    await redis.delete(KEYS.call("j.0"))
    await sweep(ledger, later=3600)
    assert await taken(redis) == []
    await move(ledger, "y", "z", end="end")
    assert await taken(redis) == ["b"]


@pytest.mark.parametrize("end", ["success", "unknown", "cancelled"])
async def test_a_later_step_of_a_job_has_a_turn_that_does_not_end_with_the_job(
    ledger: Ledger, redis: Redis, end: str
) -> None:
    """The job is over while the step may be at work: the next call waits for that, too."""
    await polled_job(ledger, redis)
    step = call("j.1", job_id="j")
    await admit(ledger, step)
    assert await taken(redis) == ["j.1"]
    claim = await begun(ledger, step)
    if end == "cancelled":
        await ledger.end(step, ENDING, data_id=ANY_DATA)
    elif end == "unknown":
        await finish(ledger, claim, UNKNOWN)
    await move(ledger, "y", "z", end="end")
    assert await taken(redis) == []
    if end == "success":
        await finish(ledger, claim)
    else:
        await sweep(ledger, later=46)
    assert await taken(redis) == ["b"]


async def test_an_agent_that_dies_before_it_has_published_holds_up_nobody_for_long(
    ledger: Ledger, redis: Redis
) -> None:
    """With another broker. If its message is there all the same, the call comes back to its place."""
    admission, later = AdmissionControl(Settings()), fleet_clock.now() + 3600
    for name in "abc":
        await admission.ask(ledger.connection, call(name, deadline_at=later))
    assert await sweep(ledger, later=29) == []
    assert len(await sweep(ledger, later=31)) == 1
    assert await redis.zrange(KEYS.turns(LINE), 0, -1) == ["b"]
    assert await enter(ledger, call("a", deadline_at=later)) == "waits"
    assert await redis.zrange(KEYS.line(LINE), 0, -1) == ["a", "c"]


async def test_a_call_that_its_agent_has_published_keeps_its_turn(ledger: Ledger, redis: Redis) -> None:
    """With another broker, while it waits in its queue."""
    admission, later = AdmissionControl(Settings()), fleet_clock.now() + 3600
    for name in "ab":
        await admission.ask(ledger.connection, call(name, deadline_at=later))
    published = call("a", deadline_at=later)
    assert published.turn is not None
    admission.keep_turn(ledger.connection, published, published.turn)
    assert await sweep(ledger, later=3500) == []


async def test_an_admission_that_is_sent_again_is_not_refused_for_a_full_line(ledger: Ledger, redis: Redis) -> None:
    """It has its turn; the answer was lost."""
    admission = AdmissionControl(Settings(backlog_limit=2))
    for name in ("a", "b", "c", "b", "a"):
        refusal = await admission.ask(ledger.connection, call(name))
        assert refusal is None or refusal.kind == "waits"


async def test_a_turn_that_is_over_is_free_for_who_comes_next(ledger: Ledger, redis: Redis) -> None:
    """And nothing is left of one, long before its call's deadline."""
    day = fleet_clock.now() + 86400
    await redis.zadd(KEYS.turns(LINE), {"old": 1})
    await admit(ledger, call("a", deadline_at=day))
    assert await taken(redis) == ["a"]
    await finish(ledger, await begun(ledger, call("a", deadline_at=day)), UNKNOWN)
    await sweep(ledger, later=1000)
    assert await left(redis) == []


async def test_a_lost_turn_passes_on_at_once_however_many_lines_there_are(ledger: Ledger, redis: Redis) -> None:
    """What only has to be looked at does not stand before it, and no script publishes more than it may."""
    day = fleet_clock.now() + 86400
    for number in range(150):
        turn = {"turn": Turn(line=f"research:{number}")}
        await admit(ledger, *(call(f"{name}{number}", deadline_at=day).model_copy(update=turn) for name in "ab"))
    await taken(redis)
    await redis.zadd(KEYS.turns("research:99"), {"a99": (fleet_clock.now() + 45) * 1000})
    await redis.zadd(KEYS.lines, {"research:99": (fleet_clock.now() + 45) * 1000})
    await sweep(ledger, later=46)
    assert await taken(redis) == ["b99"]
    await sweep(ledger, later=90_000)
    assert len(await taken(redis)) == 100


async def test_an_end_from_outside_asks_for_no_line_of_a_call_that_was_begun_without(
    ledger: Ledger, redis: Redis
) -> None:
    """Nor does a job that has kept no turn."""
    plain = published(call_id="p")
    await begun(ledger, plain)
    await redis.config_resetstat()
    await ledger.end(plain, ENDING, data_id=ANY_DATA)
    assert "cmdstat_get" not in await redis.info("commandstats")


@pytest.mark.slow
async def test_a_hundred_thousand_lines_take_memory_only_while_they_are_used(ledger: Ledger, redis: Redis) -> None:
    """Nothing of them is left behind their last calls, and no look at lines visits those in which nobody waits."""
    if isinstance(ledger.connection, RepeatingConnection):
        pytest.skip("what is asked here does not depend on how often it is")
    admission, lines = AdmissionControl(Settings(calls_per_caller=10**6, backlog_limit=10**6)), 100_000
    seen = await redis.dbsize()

    async def ask(number: int, name: str) -> None:
        one = published(call_id=f"{name}{number}", user_id=None, turn=Turn(line=f"research:{number}"))
        script, parameters = admission.build_command(one, now=fleet_clock.now(), message=one.call_id)
        await ledger.connection.send("EVALSHA", script.digest, *parameters)

    await ledger.connection.send("SCRIPT", "LOAD", ADMIT_TURN.text)
    await ledger.connection.send("SCRIPT", "LOAD", LEAVE.text)
    for start in range(0, lines, 1000):
        await asyncio.gather(*(ask(number, "a") for number in range(start, start + 1000)))
    await asyncio.gather(*(ask(number, "b") for number in range(1000)))
    assert (await redis.llen(QUEUE), await redis.zcard(KEYS.lines)) == (lines, 1000)
    assert await redis.dbsize() > 2 * lines
    for name, count in (("a", lines), ("b", 1000)):
        for start in range(0, count, 1000):
            ids = [f"{name}{number}" for number in range(start, start + 1000)]
            ends = [LEAVE.parameters(record=KEYS.call(one), base=KEYS.begin, call_id=one) for one in ids]
            await asyncio.gather(*(ledger.connection.send("EVALSHA", LEAVE.digest, *end) for end in ends))
    assert await redis.llen(QUEUE) == lines + 1000
    assert await left(redis) == []
    assert await redis.dbsize() <= seen + 3  # the queue, its notify key, and the caller's calls
