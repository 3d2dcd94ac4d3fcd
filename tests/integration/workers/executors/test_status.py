"""Asking a module where a call is that it has accepted: what it is asked, which answers count, and what the others mean."""

import asyncio
import json
from typing import Any

import pytest

from support.modules.http_executor import executor_for
from support.modules.raw_module import Behaviour, answering, http, raw_module
from support.published_call import published
from toolfleet_registry.contracts.attempts import (
    Acceptance,
    Attempt,
    Outcome,
    Question,
    Standing,
    StatusMissing,
    StillAtWork,
)
from toolfleet_registry.contracts.call_context import Progress, report_to
from toolfleet_registry.contracts.inputs import MOST_ROUNDS, CallInputs, InputRequest

SECONDS = 10  # long enough that only a defect can use it up
LIMIT = 2**20
TOOL = published().tool_name


def answer(state: Any = "running", **fields: Any) -> bytes:
    """An answer about the call that is asked for, unless `fields` name another."""
    return http(json.dumps({"call_id": "call-1", "state": state, **fields}).encode())


async def asked(behaviour: Behaviour, *, seconds: float = SECONDS) -> Standing:
    async with raw_module(behaviour) as module, executor_for(module.url, max_reply_bytes=LIMIT) as executor:
        return await executor.statuses.status(published(), "egg ✓", seconds=seconds)


async def executed(behaviour: Behaviour) -> Attempt:
    async with raw_module(behaviour) as module, executor_for(module.url, max_reply_bytes=LIMIT) as executor:
        return await executor.execute(published(), seconds=SECONDS)


async def test_a_module_is_asked_for_the_handle_of_the_call() -> None:
    """POST /status beside /execute, with the headers of a reconciliation; `cancel` only where nobody wants the call any more."""
    async with raw_module(answering(answer())) as module, executor_for(f"{module.url}/base") as executor:
        await executor.statuses.status(published(), "egg ✓", seconds=3)
        await executor.statuses.status(published(), "egg ✓", seconds=3, cancel=True)

    first, second = module.requests
    assert first.line == "POST /base/status HTTP/1.1"
    assert first.json == {"call_id": "call-1", "handle": "egg ✓"}
    assert second.json == {"call_id": "call-1", "handle": "egg ✓", "cancel": True}
    assert first.headers["idempotency-key"] == "call-1"
    assert first.headers["toolfleet-time-left-ms"] == "3000"
    assert module.connections == 1


async def test_one_that_is_at_work_says_how_far_it_is() -> None:
    """Its words are progress, and it may say when it wants to be asked; what is no number counts as unsaid."""
    seen = list[Progress]()
    report_to(seen.append)
    assert await asked(answering(answer(progress=0.5, message="warming", poll_after_seconds=3))) == StillAtWork(3.0)
    assert await asked(answering(answer(poll_after_seconds="soon"))) == StillAtWork(None)
    assert [(each.fraction, each.message) for each in seen] == [(0.5, "warming")]


@pytest.mark.parametrize(
    ("fields", "outcome", "effect_state"),
    [
        ({"success": True, "result": 7}, Outcome.SUCCESS, "done"),
        ({"success": False, "error": "cold"}, Outcome.FAILED, "done"),
        ({"success": False, "error": "cold", "effect_state": "none"}, Outcome.FAILED, "none"),
        ({}, Outcome.FAILED, "done"),
    ],
)
async def test_one_that_has_ended_is_judged_as_a_reconciliation(
    fields: dict[str, Any], outcome: Outcome, effect_state: str
) -> None:
    """With what `/execute` would have answered."""
    found = await asked(answering(answer("done", **fields)))
    assert isinstance(found, Attempt)
    assert (found.outcome, found.result.effect_state) == (outcome, effect_state)


async def test_one_may_ask_and_is_told_the_answer() -> None:
    """Where whoever called takes input, and has not been asked too often; a question to nobody is the call's failure."""
    who = {"who": {"method": "elicitation/create", "params": {"message": "Who?"}}}
    says = answer("input_required", input_required={"requests": who, "state": "egg"}, effect_state="none")
    inputs = CallInputs(round=1, responses={"who": {"action": "accept"}}, state="egg")
    last = inputs.model_copy(update={"round": MOST_ROUNDS})
    calls = [
        published(takes_input=True),
        published(takes_input=True, inputs=inputs),
        published(takes_input=True, inputs=last),
        published(),
    ]
    async with raw_module(answering(says)) as module, executor_for(module.url) as executor:
        found = [await executor.statuses.status(call, "egg", seconds=SECONDS) for call in calls]

    asked = InputRequest(method="elicitation/create", params={"message": "Who?"})
    assert [each.question for each in found if isinstance(each, Attempt)] == [
        *[Question({"who": asked}, "egg", "none")] * 2,
        None,
        None,
    ]
    assert [(request.json.get("takes_input"), request.json.get("inputs")) for request in module.requests] == [
        (True, None),
        (True, inputs.model_dump(exclude={"so_far"})),
        (None, last.model_dump(exclude={"so_far"})),
        (None, None),
    ]


@pytest.mark.parametrize(
    "reply",
    [
        answer("unknown"),
        answer("none"),
        *(http(b"{}", status=f"{status} No") for status in (404, 405, 410, 501)),
    ],
    ids=["unknown", "none", "404", "405", "410", "501"],
)
async def test_one_that_is_not_known_has_ended_as_unknown(reply: bytes) -> None:
    """It had begun: nobody takes it for undone."""
    found = await asked(answering(reply))
    assert isinstance(found, Attempt)
    assert (found.result.error_code, found.result.effect_state) == ("outcome_unknown", "unknown")


@pytest.mark.parametrize(
    "reply",
    [
        *(http(b"{}", status=f"{status} No") for status in (202, 302, 401, 403, 422, 429, 500, 503)),
        answer("hatching"),
        answer("done", call_id="call-2", success=True, result=7),
        answer("done", success=True, result=7, error=7),
        http(b"no JSON"),
        http(b""),
        b"no HTTP at all",
    ],
)
async def test_what_is_no_answer_ends_nothing(reply: bytes) -> None:
    """The module is asked again; it is there, so nothing counts against it."""
    assert await asked(answering(reply)) == StatusMissing()


async def test_silence_is_told_from_absence() -> None:
    """One that takes the question and says nothing, and one that nobody can connect to."""

    async def silent(_: Any) -> None:
        await asyncio.Event().wait()

    assert await asked(silent, seconds=0.3) == StatusMissing(is_silent=True)
    async with raw_module(silent) as module:
        url = module.url
    async with executor_for(url) as executor:
        assert await executor.statuses.status(published(), "egg", seconds=3) == StatusMissing(is_unreached=True)
        other = published("owls.hatch")
        assert await executor.statuses.status(other, "egg", seconds=3) == StatusMissing()


async def test_an_answer_that_is_too_large_is_an_end() -> None:
    """It would be as large the next time."""
    found = await asked(answering(answer("done", success=True, result="x" * LIMIT)))
    assert isinstance(found, Attempt)
    assert (found.result.error_code, found.result.effect_state) == ("result_too_large", "unknown")


@pytest.mark.parametrize("status", ["200 OK", "202 Accepted"])
async def test_a_reply_may_say_that_the_call_goes_on(status: str) -> None:
    """Whoever does not follow it takes that for an unknown end."""
    said = {"tool_name": TOOL, "accepted": True, "handle": "egg ✓", "poll_after_seconds": 2, "more": 1}
    found = await executed(answering(http(json.dumps(said).encode(), status=status)))
    assert found.acceptance == Acceptance("egg ✓", 2.0)
    assert (found.outcome, found.result.effect_state) == (Outcome.UNKNOWN, "unknown")


@pytest.mark.parametrize(
    "said",
    [
        {"tool_name": TOOL, "accepted": True},
        {"tool_name": TOOL, "accepted": True, "handle": ""},
        {"tool_name": TOOL, "accepted": True, "handle": "x" * 513},
        {"tool_name": TOOL, "accepted": True, "handle": "two\nlines"},
        {"tool_name": "owls.other", "accepted": True, "handle": "egg"},
        {"tool_name": TOOL, "accepted": "yes", "handle": "egg"},
    ],
)
async def test_an_acceptance_that_cannot_be_followed_is_none(said: dict[str, Any]) -> None:
    """Nobody knows what the module makes of the call."""
    found = await executed(answering(http(json.dumps(said).encode())))
    assert found.acceptance is None
    assert (found.result.error_code, found.result.effect_state) == ("invalid_response", "unknown")


@pytest.mark.parametrize("seconds", [-1, "2", True, 1e9, None])
async def test_a_time_that_is_none_is_left_out(seconds: Any) -> None:
    """The call goes on all the same."""
    said = {"tool_name": TOOL, "accepted": True, "handle": "egg", "poll_after_seconds": seconds}
    found = await executed(answering(http(json.dumps(said).encode())))
    assert found.acceptance == Acceptance("egg", None)


async def test_a_reconciliation_may_name_the_handle() -> None:
    """Of a call whose acceptance nobody has heard."""
    for handle, acceptance in (("egg", Acceptance("egg")), ("", None), (7, None)):
        async with raw_module(answering(answer(handle=handle))) as module, executor_for(module.url) as executor:
            found = await executor.reconcile(published(), seconds=SECONDS)
        assert (found and found.acceptance) == acceptance
