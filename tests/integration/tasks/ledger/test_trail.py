"""The trail of a call in the ledger, and in its audit line: only of calls to which more happens than that they run once. Also when each script is sent twice."""

import json
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.workers.ledgers import ENDING, RECORD, begun, claimed, close, finish, holding, run_out
from toolfleet_registry.contracts.attempts import Question
from toolfleet_registry.contracts.inputs import CallInputs, InputRequest
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.ledger.claims import AcceptedAttempt
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.ledger.parameters import Ended
from toolfleet_tasks.operations.call_story import LineTimes, TrailPart, holder_of, parts_of, spans_of

CALL = published(effect="read", deadline_at=time.time() + 3600, takes_input=True)
WHO = Question({"who": InputRequest(method="elicitation/create", params={"message": "Who?"})}, "", "none")
WORKER = "fast@a-host"


@pytest.fixture(autouse=True)
def _has_a_name(ledger: Ledger) -> None:
    ledger.tokens.serve(WORKER)


async def line_of(redis: Redis) -> dict[str, Any]:
    """The call's one line in the audit."""
    entries: Any = await redis.xrange(Keys().audit)
    ((_, fields),) = entries
    found = json.loads(fields["line"])
    assert isinstance(found, dict)
    return found


async def field(redis: Redis, name: str) -> str | None:
    """Of the call's record."""
    found = await redis.hget(RECORD, name)
    return found.decode() if isinstance(found, bytes) else found


def is_now(moment: float | None) -> bool:
    return moment is not None and abs(moment - time.time() * 1000) < 60_000


async def test_a_call_that_runs_once_has_none(ledger: Ledger, redis: Redis) -> None:
    """Neither its record nor its line grows; whose it is, and since when, its token says."""
    claim = await begun(ledger, CALL)
    at, worker = holder_of(await field(redis, "token"))
    await finish(ledger, claim)

    assert (is_now(at), worker) == (True, WORKER)
    assert holder_of(await field(redis, "by")) == (at, worker)
    assert not await redis.hexists(RECORD, "trail")
    assert {"trail", "polls", "own_ms", "replica"}.isdisjoint(await line_of(redis))
    assert len(str(await field(redis, "by"))) <= 64


async def test_each_attempt_is_noted_with_its_worker(ledger: Ledger, redis: Redis, other: Ledger) -> None:
    """Of a call that was tried again, by another worker: how each attempt has ended, when, after how long."""
    await close(ledger, await begun(ledger, CALL))
    other.tokens.serve("fast@b host/ü")
    await finish(other, await begun(other, CALL))
    first, second = parts_of((await line_of(redis))["trail"])

    assert (first.kind, first.number, first.outcome, first.ms, first.worker) == (
        "attempt",
        1,
        "turned_away",
        12,
        WORKER,
    )
    assert (second.kind, second.number, second.outcome, second.ms) == ("attempt", 2, "success", 5)
    assert second.worker == "fast@b_host/_"
    assert all(is_now(each) for each in (first.at, first.claimed, second.at, second.claimed))


async def test_a_lost_attempt_names_its_worker(ledger: Ledger, redis: Redis, other: Ledger) -> None:
    """Whoever has the call next notes who had it, since when, and until when that was heard of."""
    await begun(ledger, CALL)
    await run_out(redis)
    other.tokens.serve("fast@b")
    claim = await begun(other, CALL)
    running = parts_of(await field(redis, "trail"))
    await finish(other, claim)
    lost, last = parts_of((await line_of(redis))["trail"])

    assert running == [lost]
    assert (lost.kind, lost.number, lost.worker, is_now(lost.claimed)) == ("lost", 1, WORKER, True)
    assert (last.kind, last.number, last.worker) == ("attempt", 2, "fast@b")


async def test_an_accepted_call_counts_its_polls(ledger: Ledger, redis: Redis) -> None:
    """However often its module is asked, its trail stays as long."""
    egg, heard = AcceptedAttempt("egg", time.time(), 0.5), Ended("accepted 5", 0, 3, 10_000)
    for number in range(4):
        claim = await (claimed if number else begun)(ledger, CALL)
        with holding(ledger.claims, claim):
            assert await ledger.waiting.park(claim, egg, heard, seconds=0)
    parts = parts_of(await field(redis, "trail"))
    await finish(ledger, await claimed(ledger, CALL))
    line = await line_of(redis)

    assert [(part.kind, part.number, part.ms) for part in parts] == [("accepted", 1, 5)]
    assert line["polls"] in {3, 6}  # what is sent twice is counted once or twice
    assert [part.kind for part in parts_of(line["trail"])] == ["accepted", "attempt"]


async def test_a_question_and_its_answer_are_noted(ledger: Ledger, redis: Redis) -> None:
    """Since when the call has waited, and until when."""
    claim = await begun(ledger, CALL)
    with holding(ledger.claims, claim):
        assert await ledger.waiting.ask(claim, WHO, Ended("input_required 5", 0, 3, 10_000), text="a text")
    answers = {"who": {"action": "accept"}}
    assert await ledger.waiting.answer(CALL.call_id, 1, answers, queue="tools.research", message="m") in {
        "taken",
        "again",
    }
    inputs = CallInputs(round=1, responses=answers, so_far="none")
    await finish(ledger, await begun(ledger, CALL.model_copy(update={"inputs": inputs})))
    parts = parts_of((await line_of(redis))["trail"])

    assert [part.kind for part in parts] == ["asked", "answered", "attempt"]
    phases = [span.phase for span in spans_of(parts, LineTimes())]
    assert [phase for phase in phases if phase not in {"claimed", "queued"}] == ["attempt", "input", "attempt"]


async def test_what_is_ended_while_it_runs_says_who_had_it(ledger: Ledger, redis: Redis, other: Ledger) -> None:
    """Its line is not its worker's, and names that all the same."""
    await begun(ledger, CALL)
    await other.end(CALL, ENDING, data_id=ANY_DATA)
    line = await line_of(redis)

    assert [(part.kind, part.number, part.worker) for part in parts_of(line["trail"])] == [("cut", 1, WORKER)]
    assert line["outcome"] == "unknown"


async def test_a_trail_is_bounded(ledger: Ledger, redis: Redis) -> None:
    """A call that asks for ever does not fill Redis."""
    await redis.hset(RECORD, "trail", "x" * 3_000)
    await close(ledger, await begun(ledger, CALL))

    assert await field(redis, "trail") == "x" * 3_000


async def test_what_a_stranger_has_written_breaks_no_end(ledger: Ledger, redis: Redis, other: Ledger) -> None:
    """The line stays JSON, whatever stands in the record."""
    await begun(ledger, CALL)
    await redis.hset(RECORD, mapping={"trail": 'x"},{\\;\n', "polls": "many", "replica": '"owl"'})
    await other.end(CALL, ENDING, data_id=ANY_DATA)

    assert (await line_of(redis))["polls"] == 0


async def test_a_replica_stands_in_the_line(ledger: Ledger, redis: Redis) -> None:
    """Of a module with several processes, also where the call ran once."""
    claim = await ledger.claim(CALL, replica="owl-1 shared")
    await finish(ledger, claim)  # type: ignore[arg-type] # it is one

    assert (await line_of(redis))["replica"] == "owl-1"


@pytest.mark.parametrize("text", ["", "x", "~", "~zz~w", "~12~", "uuid-7", "a~" + "f" * 40 + "~w"])
def test_what_is_no_token_of_a_worker_says_nothing(text: str) -> None:
    """Of an earlier version's, too."""
    assert holder_of(text) == (None, None)


def test_what_cannot_be_read_is_left_out() -> None:
    """Another version's parts, and what somebody else has written."""
    wrong = [
        "attempt",
        "attempt 1 2 3",
        "eaten 1 2",
        "lost x 1 2 3 w -",
        "answered 1 2 3",
        "attempt 1 0 5 9 failed w",
        ";;",
    ]

    assert parts_of(";".join([*wrong, "answered 1 77"])) == [TrailPart("answered", 1, 77)]
    assert len(parts_of("answered 1 77;" * 5_000)) <= 100
