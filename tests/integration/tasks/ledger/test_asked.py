"""Calls whose modules have asked something, in the ledger: they wait for one answer, and end once. Also when each script is sent twice."""

import time

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.waiting import PATIENCE_SECONDS
from support.workers.ledgers import (
    ENDING,
    RECORD,
    begun,
    claimed,
    close,
    finish,
    holding,
    refused,
    run_out,
    worker_ledger,
)
from toolfleet_registry.contracts import EffectState, PublishedCall
from toolfleet_registry.contracts.attempts import Question
from toolfleet_registry.contracts.inputs import CallInputs, InputRequest
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.ledger.claims import AcceptedAttempt, Claim
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.ledger.parameters import Ended
from toolfleet_tasks.ledger.scripts import CLAIM
from toolfleet_tasks.ledger.waiting import CallEnded, Verdict
from toolfleet_tasks.messages.json_text import VERSION
from toolfleet_tasks.results.stored import read_stored
from toolfleet_tasks.scripts import REPLY_DIGITS

CALL = published(effect="once", deadline_at=time.time() + 3600, takes_input=True)
WHO = {"who": InputRequest(method="elicitation/create", params={"message": "Who?"})}
UNTOUCHED, UNSURE = Question(WHO, "sealed ✓", "none"), Question(WHO)
HEARD = Ended("input_required 5", 0, 3, 10_000)
ADA, BOB = {"who": {"action": "accept"}}, {"who": {"action": "decline"}}
EGG = AcceptedAttempt("egg ✓", 12.5, 0.5)
KEY = "a secret of more than thirty-two characters"
SETTINGS = {"module_concurrency": {"research": 1}}
QUEUE = "tools.research"
TAKEN = {"taken", "again"}  # sent again it was taken before


def answered(number: int, so_far: EffectState = "none") -> PublishedCall:
    """The call as it goes on with the answer to this question."""
    return CALL.model_copy(update={"inputs": CallInputs(round=number, responses=ADA, so_far=so_far)})


async def asked(ledger: Ledger, question: Question = UNTOUCHED, call: PublishedCall = CALL) -> Claim:
    """A call that has begun, and whose module has asked."""
    claim = await begun(ledger, call)
    with holding(ledger.claims, claim):
        assert await ledger.waiting.ask(claim, question, HEARD, text="a text")
    return claim


async def answer(ledger: Ledger, number: int = 1, responses: dict[str, dict[str, str]] = ADA) -> Verdict:
    return await ledger.waiting.answer(CALL.call_id, number, responses, queue=QUEUE, message="a message")


async def test_nobody_holds_it_until_it_is_answered(ledger: Ledger, redis: Redis) -> None:
    """Its place in its module is free, and whoever follows it is told; the answer puts it into its queue, and is no attempt."""
    async with redis.pubsub() as heard:
        reply = Keys().reply(CALL.call_id[-REPLY_DIGITS:])
        for channel in (Keys().progress(CALL.call_id), reply):
            await heard.subscribe(channel)
            await heard.get_message(timeout=PATIENCE_SECONDS)
        await asked(ledger)
        messages = [await heard.get_message(timeout=PATIENCE_SECONDS) or {} for _ in range(2)]
    said = {message["channel"]: message["data"] for message in messages}
    assert said == {Keys().progress(CALL.call_id): "input_required", reply: f"input_required{CALL.call_id}"}
    assert (await ledger.state_of(CALL.call_id), await redis.zcard(Keys().running("research"))) == ("input_required", 0)
    found = await ledger.waiting.find(CALL.call_id)
    assert found is not None
    assert (found.pending.round, found.pending.requests, found.state, found.text) == (1, WHO, "sealed ✓", "a text")
    assert await answer(ledger) in TAKEN
    assert await redis.llen(Keys().queue(QUEUE)) == 1
    assert await ledger.waiting.find(CALL.call_id) is None
    claim = await claimed(ledger, answered(1))
    assert (claim.granted, claim.attempts, claim.so_far) == ("go", 1, "none")
    assert await finish(ledger, claim) is not None
    assert await answer(ledger, 2) == "ended"
    assert not await redis.hexists(RECORD, "message")


async def test_a_message_that_brings_no_answer_is_dropped(ledger: Ledger) -> None:
    """That of a worker that died once its question was kept comes again: while it is asked, once it is answered, and later."""
    await asked(ledger)
    assert (await refused(ledger, CALL)).reason == "stale"
    assert (await refused(ledger, answered(1))).reason == "stale"
    await answer(ledger)
    assert (await refused(ledger, CALL)).reason == "stale"
    await asked(ledger, call=answered(1))
    await answer(ledger, 2, BOB)
    assert (await refused(ledger, answered(1))).reason == "stale"
    assert (await claimed(ledger, answered(2))).granted == "go"
    assert (await refused(ledger, CALL)).reason == "stale"


async def test_each_question_takes_one_answer(ledger: Ledger, redis: Redis) -> None:
    """The same again changes nothing, also of an earlier question; another one is refused, and so is one that nobody has asked for."""
    assert await answer(ledger) == "unknown"
    claim = await begun(ledger, CALL)
    assert await answer(ledger) == "not_asked"
    assert await ledger.waiting.ask(claim, UNTOUCHED, HEARD, text="a text")
    assert await answer(ledger, 2) == "not_asked"
    assert await answer(ledger) in TAKEN
    assert (await answer(ledger), await answer(ledger, 1, BOB)) == ("again", "answered")
    await asked(ledger, call=answered(1))
    assert await answer(ledger, 2, BOB) in TAKEN
    assert (await answer(ledger), await answer(ledger, 1, BOB)) == ("again", "answered")
    assert await redis.llen(Keys().queue(QUEUE)) == 2


async def test_what_another_broker_is_to_send_can_be_sent_again(ledger: Ledger) -> None:
    """Until the call ends: whoever took the answer may have died before its message was published."""
    await asked(ledger)
    verdict = await ledger.waiting.answer(CALL.call_id, 1, ADA, queue=QUEUE, message="")
    found = await ledger.waiting.find(CALL.call_id)
    assert verdict in TAKEN
    assert found is not None
    assert (found.is_open, found.text) == (False, "a text")


async def test_the_retry_is_counted_without_questions(ledger: Ledger, redis: Redis) -> None:
    """A first attempt that failed and a second one that asks leave one more, and what they have done counts."""
    await close(ledger, await begun(ledger, CALL))
    await asked(ledger, UNSURE)
    await answer(ledger)
    claim = await claimed(ledger, answered(1, "unknown"))
    assert (claim.granted, claim.attempts, claim.so_far) == ("go", 2, "unknown")
    await run_out(redis)
    assert (await claimed(ledger, answered(1, "unknown"))).granted == "unknown"


@pytest.mark.parametrize(("question", "state"), [(UNTOUCHED, "none"), (UNSURE, "unknown")])
async def test_its_end_from_outside_says_what_its_module_has_said(
    ledger: Ledger, other: Ledger, question: Question, state: str
) -> None:
    """Whether it waits, or was just answered: then it is not begun any more."""
    await asked(ledger, question)
    stored = await other.end(CALL, ENDING, data_id=ANY_DATA)
    assert read_stored(stored, CALL.tool_name).effect_state == state
    assert await ledger.waiting.find(CALL.call_id) is None
    assert (await answer(ledger), (await refused(ledger, answered(1))).reason) == ("ended", "done")


async def test_a_question_of_a_call_that_has_ended_is_none(ledger: Ledger, redis: Redis, other: Ledger) -> None:
    """Nor is that of a worker that has lost the call."""
    claim = await begun(ledger, CALL)
    await run_out(redis)
    assert (await claimed(other, CALL)).granted == "unknown"
    assert not await ledger.waiting.ask(claim, UNTOUCHED, HEARD, text="a text")
    await other.end(CALL, ENDING, data_id=ANY_DATA)
    with pytest.raises(CallEnded):
        await ledger.waiting.ask(claim, UNTOUCHED, HEARD, text="a text")


async def test_a_lost_record_makes_no_call_undone(ledger: Ledger, redis: Redis) -> None:
    """Its message knows what it may have done before it asked."""
    await asked(ledger, UNSURE)
    await answer(ledger)
    await redis.delete(RECORD)
    claim = await claimed(ledger, answered(1, "unknown"))
    assert (claim.granted, claim.so_far) == ("go", "unknown")


@pytest.mark.parametrize(("goes_on", "version"), [(False, 1), (True, 2)])
async def test_older_workers_leave_it_to_newer_ones(
    ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch, goes_on: bool, version: int
) -> None:
    """A worker that knows of no such calls neither runs nor ends it."""
    await (asked_by(ledger) if goes_on else asked(ledger))
    await answer(ledger)
    older = CLAIM.text.replace(f"local VERSION = {VERSION}", f"local VERSION = {version}")
    assert older != CLAIM.text
    with monkeypatch.context() as patch:
        patch.setitem(CLAIM.__dict__, "text", older)
        patch.setitem(CLAIM.__dict__, "digest", "0" * 40)  # Redis has never seen it
        assert (await refused(ledger, answered(1))).reason == "newer"
    assert (await claimed(ledger, answered(1))).granted == ("accepted" if goes_on else "go")


@pytest.mark.parametrize("signs", [True, False])
async def test_a_question_that_nobody_has_signed_is_none(redis_url: str, redis: Redis, signs: bool) -> None:
    """Whoever writes into Redis cannot have people asked for other things than the module does."""
    async with worker_ledger(redis_url, signing_key=KEY if signs else None) as ledger:
        await asked(ledger)
        assert await ledger.waiting.find(CALL.call_id) is not None
        forged = '{"round":1,"requests":{"pin":{"method":"elicitation/create"}}}'
        await redis.hset(RECORD, "question", forged)
        assert (await ledger.waiting.find(CALL.call_id) is None) == signs
        for nothing in ("[]", "{}", "owl", "[" * 5_000):
            await redis.hset(RECORD, "question", nothing)
            assert await ledger.waiting.find(CALL.call_id) is None


async def asked_by(ledger: Ledger) -> Claim:
    """A call that its module goes on with, and that has asked something."""
    claim = await begun(ledger, CALL)
    with holding(ledger.claims, claim):
        assert await ledger.waiting.park(claim, EGG, HEARD, seconds=0)
    claim = await claimed(ledger, CALL)
    with holding(ledger.claims, claim):
        assert await ledger.waiting.ask(claim, UNSURE, HEARD, text="a text", accepted=EGG)
    return claim


async def test_what_goes_on_by_itself_is_never_begun_again(ledger: Ledger, redis: Redis) -> None:
    """Whoever brings the answer asks where the call is, also after a worker that died with it; and its end is its one result."""
    await asked_by(ledger)
    assert (await ledger.state_of(CALL.call_id), (await refused(ledger, CALL)).reason) == ("input_required", "early")
    assert await answer(ledger) in TAKEN
    assert (await refused(ledger, CALL)).reason == "stale"
    for _ in range(2):
        claim = await claimed(ledger, answered(1))
        assert (claim.granted, claim.attempts, claim.accepted) == ("accepted", 1, EGG)
        await run_out(redis)
    claim = await claimed(ledger, answered(1))
    with holding(ledger.claims, claim):
        assert await ledger.waiting.ask(claim, UNSURE, HEARD, text="a text", accepted=EGG)
    assert [(await refused(ledger, each)).reason for each in (CALL, answered(1))] == ["stale", "early"]
    assert await answer(ledger, 2, BOB) in TAKEN
    claim = await claimed(ledger, answered(2))
    assert (claim.granted, claim.attempts) == ("accepted", 1)
    assert await finish(ledger, claim) is not None
    assert (await refused(ledger, answered(1))).reason == "done"


async def test_its_module_is_told_of_an_end_from_outside(ledger: Ledger, other: Ledger) -> None:
    """While it waits for an answer its message stays, finds the end, and recalls it once."""
    await asked_by(ledger)
    stored = await other.end(CALL, ENDING, data_id=ANY_DATA)
    assert read_stored(stored, CALL.tool_name).effect_state == "unknown"
    assert (await refused(ledger, CALL)).reason == "done"
    recalled = await ledger.waiting.recall(CALL.call_id)
    assert recalled is not None
    assert recalled[0] == EGG
    assert await answer(ledger) == "ended"
