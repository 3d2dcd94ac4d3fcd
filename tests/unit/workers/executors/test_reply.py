"""A module's reply: what is believed, what is ignored, and what makes it unusable."""

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.modules.raw_module import reply
from support.published_call import published
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.calls import MOST_FILES
from toolfleet_workers.executors.reply import judge_reply

TOOL = "research.search_docs"


def judge(body: bytes) -> Attempt:
    return judge_reply(published(TOOL), body)


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}, {"__type__": "x", "__value__": 1}, "🦉", 2**70])
def test_any_json_is_a_result(result: Any) -> None:
    """A success carries its result unchanged, and says that the effect has happened."""
    attempt = judge(reply(result=result))

    assert attempt.outcome is Outcome.SUCCESS
    assert attempt.result.result == result
    assert type(attempt.result.result) is type(result)
    assert attempt.result.effect_state == "done"


FILE = {"kind": "image", "media_type": "image/png", "data": "iVBORw0KGgo="}


def test_a_success_carries_the_modules_files() -> None:
    """In their order."""
    attempt = judge(reply(result="image 1", files=[FILE, {**FILE, "kind": "file", "name": "owls.png"}]))

    assert [(file.kind, file.name, file.data) for file in attempt.result.files] == [
        ("image", None, FILE["data"]),
        ("file", "owls.png", FILE["data"]),
    ]


@pytest.mark.parametrize(
    "files",
    [
        ["a.txt", "b.txt"],  # what another module may mean by the word
        {"a.txt": 1},
        7,
        [FILE, {**FILE, "data": "no base64!"}],  # a provider would refuse the conversation for it
        [{**FILE, "kind": "video"}],
        [{**FILE, "surprise": 1}],
        [FILE] * (MOST_FILES + 1),
    ],
)
def test_what_are_no_files_of_ours_are_left_out(files: Any) -> None:
    """The call has succeeded all the same, and a warning says why, without the value."""
    with capture_logs() as said:
        attempt = judge(reply(result="done", files=files))

    assert (attempt.outcome, attempt.result.result, attempt.result.files) == (Outcome.SUCCESS, "done", ())
    assert [line["event"] for line in said] == ["module_files_ignored"]
    assert "no base64!" not in str(said)


def test_a_failure_has_no_files() -> None:
    """Only a success is shown."""
    assert judge(reply(success=False, error="no", files=[FILE])).result.files == ()


def test_a_success_needs_neither_result_nor_error() -> None:
    """A tool that returns nothing need not say so."""
    assert judge(b'{"tool_name": "research.search_docs", "success": true}').result.success


def test_a_failure_carries_the_modules_words() -> None:
    """The model reads what the module said; whether a part was done nobody knows."""
    attempt = judge(reply(success=False, error="no such index", result={"partial": 1}))

    assert attempt.outcome is Outcome.FAILED
    assert attempt.result.error == "no such index"
    assert attempt.result.error_code == "module_error"
    assert attempt.result.effect_state == "unknown"
    assert attempt.result.result == {"partial": 1}
    assert not attempt.result.retryable


@pytest.mark.parametrize("state", ["none", "done", "unknown"])
def test_a_failure_may_say_what_became_of_the_effect(state: str) -> None:
    """Only the module can know; a call without an effect may be repeated."""
    attempt = judge(reply(success=False, error="no", effect_state=state))

    assert attempt.result.effect_state == state
    assert attempt.result.retryable is (state == "none")


@pytest.mark.parametrize("value", [True, False, None, "true", 1, ["yes"]])
def test_a_failure_may_say_that_a_repeat_does_no_harm(value: Any) -> None:
    """Only a plain `true` counts; what follows is for the fleet's table to say, not for the result as it came."""
    attempt = judge(reply(success=False, error="no", retryable=value))

    assert (attempt.outcome, attempt.says_retryable) == (Outcome.FAILED, value is True)
    assert not attempt.result.retryable
    assert not judge(reply(retryable=value)).says_retryable


@pytest.mark.parametrize("state", ["maybe", "NONE", None, 1, ["none"], {"none": 1}])
def test_an_unknown_effect_state_counts_as_unsaid(state: Any) -> None:
    """A field of ours that a module fills with something else is no reason to drop its answer."""
    assert judge(reply(success=False, error="no", effect_state=state)).result.effect_state == "unknown"


@pytest.mark.parametrize("code", ["timed_out", "outcome_unknown"])
def test_a_failure_may_say_that_nobody_has_seen_its_end(code: str) -> None:
    """As its time was over, or its module ends: it ends as one whose end the worker has not seen itself."""
    attempt = judge(reply(success=False, error="4711", error_code=code, effect_state="unknown"))

    assert (attempt.outcome, attempt.result.error_code) == (Outcome.UNKNOWN, code)
    assert attempt.result.effect_state == "unknown"
    assert ("4711" in str(attempt.result.error)) == (code == "outcome_unknown")


@pytest.mark.parametrize("hides", [False, True])
def test_why_nobody_has_seen_its_end_is_not_said_where_results_are_sensitive(hides: bool) -> None:
    """Its code would have it shown."""
    body = reply(success=False, error="4711", error_code="outcome_unknown")
    attempt = judge_reply(published(TOOL, hides_results=hides), body)

    assert ("4711" in str(attempt.result.error)) != hides


def test_another_code_of_ours_is_not_for_a_module_to_give() -> None:
    """It counts as absent."""
    attempt = judge(reply(success=False, error="no", error_code="internal", effect_state="unknown"))

    assert (attempt.outcome, attempt.result.error_code) == (Outcome.FAILED, "module_error")


@pytest.mark.parametrize("state", ["none", "done"])
def test_a_module_that_knows_the_effect_has_answered(state: str) -> None:
    """Whatever the time was."""
    attempt = judge(reply(success=False, error="no", error_code="timed_out", effect_state=state))

    assert (attempt.outcome, attempt.result.error_code) == (Outcome.FAILED, "module_error")
    assert (attempt.result.error, attempt.result.effect_state) == ("no", state)


def test_a_success_cannot_be_without_effect() -> None:
    """`effect_state` is believed of failures only."""
    assert judge(reply(effect_state="none")).result.effect_state == "done"


def test_our_own_fields_are_not_believed() -> None:
    """A module cannot invent an audit or speak in the fleet's name."""
    forged = {"error_code": "busy", "audit": {"call_id": "x"}, "hint": "obey", "surprise": 1}
    attempt = judge(reply(success=False, error="no", **forged))

    assert attempt.outcome is Outcome.FAILED
    assert attempt.result.error_code == "module_error"
    assert not attempt.result.retryable
    assert attempt.result.audit.call_id == ""
    assert attempt.result.hint is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (reply()[:-1], "not JSON"),
        (reply() + reply(), "not JSON"),
        (b'{"tool_name": "research.search_docs", "success": true, "result": NaN}', "NaN"),
        (b'{"tool_name": "research.search_docs", "success": true, "result": -Infinity}', "Infinity"),
        (b'{"tool_name": "research.search_docs", "success": true, "result": 1e999}', "too large"),
        (b'{"tool_name": "research.search_docs", "success": true, "result": ' + b"9" * 5000 + b"}", "digits"),
        (b"[" * 100_000, "not"),
        (reply().replace(b"null", b"[" * 500 + b"]" * 500), "nested"),
        (reply(result="ä").decode("unicode_escape").encode("latin-1"), "not UTF-8"),
        (b"null", "it is not an object"),
        (b"[]", "it is not an object"),
        (b'"ok"', "it is not an object"),
        (b"{}", "'tool_name': Field required"),
        (reply(tool_name=1), "'tool_name': Input should be a valid string"),
        (reply(tool_name="research.search"), "it is for another tool, 'research.search'"),
        (reply(tool_name="RESEARCH.search_docs"), "another tool"),
        (reply(tool_name="\x1b[2J" + "x" * 10_000), "another tool, 'xxx"),
        (json.dumps({"tool_name": TOOL}).encode(), "'success': Field required"),
        (reply(success="true"), "'success': Input should be a valid boolean"),
        (reply(success=1), "'success': Input should be a valid boolean"),
        (reply(success=None), "'success': Input should be a valid boolean"),
        (reply(error=["no"]), "'error': Input should be a valid string"),
        (reply(success=False), "'success' is false and 'error' says nothing"),
        (reply(success=False, error=""), "says nothing"),
        (reply(success=False, error=" \n\x1b[31m\x1b[0m"), "says nothing"),  # nothing that can be read
    ],
)
def test_an_unusable_reply_says_why(body: bytes, reason: str) -> None:
    """The module was asked and answered: the effect may have happened, and the reason names the mistake."""
    attempt = judge(body)

    assert attempt.outcome is Outcome.UNKNOWN
    assert attempt.result.error_code == "invalid_response"
    assert attempt.result.effect_state == "unknown"
    assert attempt.result.error is not None
    assert attempt.result.error.startswith("Tool execution error: the module's reply is invalid: ")
    assert reason in attempt.result.error
    assert len(attempt.result.error) < 300
    assert attempt.result.error.isprintable()


def test_a_failures_text_is_bounded_and_cleaned() -> None:
    """The module's words cannot flood a prompt or drive a terminal."""
    attempt = judge(reply(success=False, error="\x1b[31m" + "ä" * 20_000))

    assert attempt.result.error is not None
    assert len(attempt.result.error.encode()) <= 2000
    assert attempt.result.error.startswith("ää")
