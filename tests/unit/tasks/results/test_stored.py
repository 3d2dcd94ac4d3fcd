"""What Celery and the ledger have stored becomes the one result that a caller gets."""

from typing import Any

import pytest

from support.published_call import published
from toolfleet_registry.contracts import ToolResult
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.fleet_results import CallEnding
from toolfleet_tasks.results.stored import celery_value, ending_of, read_stored, result_in, text_of

RESULT = ToolResult.ok("m.t", {"owls": 3, "__type__": "datetime"})


def failure(kind: str, message: Any = None, status: str = "FAILURE") -> dict[str, Any]:
    return {"status": status, "result": {"exc_type": kind, "exc_message": message, "exc_module": "x"}}


def ended(meta: dict[str, Any]) -> CallEnding:
    return ending_of(meta, published("m.t", limit_seconds=30))


def test_a_workers_answer_is_passed_on() -> None:
    """A result that a worker wrote arrives as it was."""
    assert result_in(json_text.dump(RESULT), "m.t") == RESULT


@pytest.mark.parametrize(
    "result", [{"not": "ours"}, "{", None, 7, "[" * 100_000]
)  # somebody else's answer, or a torn one
def test_what_cannot_be_read_has_an_unknown_end(result: Any) -> None:
    """The call was run, and nobody can say what came of it."""
    found = result_in(str(result), "m.t")

    assert (found.success, found.error_code, found.effect_state) == (False, "outcome_unknown", "unknown")


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        (failure("TimeLimitExceeded", [40.0]), "timed_out"),  # Celery's hard limit
        (failure("SoftTimeLimitExceeded", [31.0]), "timed_out"),  # its soft one, outside of our body
        (failure("TaskRevokedError", ["terminated"], "REVOKED"), "cancelled"),  # queued, running or before a retry
        (failure("WorkerLostError", ["SIGKILL"]), "outcome_unknown"),  # nobody saw the end
        (failure("MaxRetriesExceededError"), "outcome_unknown"),  # anything else
        ({"status": "FAILURE", "result": None}, "outcome_unknown"),  # not even a reason
        ({"status": "FAILURE", "result": "text"}, "outcome_unknown"),  # nor anything of Celery's
    ],
)
def test_what_celery_wrote_itself_is_translated(meta: dict[str, Any], code: str) -> None:
    """No exception of Celery's reaches an agent; what was begun, and what nobody can know, the ledger decides."""
    ending = ended(meta)

    assert (ending.unknown.error_code, ending.unknown.effect_state) == (code, "unknown")
    for nothing in (ending.unbegun, ending.undone):
        assert (nothing.success, nothing.effect_state, nothing.retryable) == (False, "none", True)
    assert ending.unknown.error


def test_the_hard_limit_has_the_same_text_as_our_own() -> None:
    """An agent that matches on the text finds it, whoever enforced the limit."""
    assert ended(failure("TimeLimitExceeded", [40.0])).unknown.error == "Tool execution timed out (30s)."


@pytest.mark.parametrize("stored", [json_text.dump(RESULT), celery_value("call-1", json_text.dump(RESULT))])
def test_what_the_ledger_has_stored_is_read(stored: str) -> None:
    """With our own backend that is Celery's value, else the result's own text."""
    assert text_of(stored) == json_text.dump(RESULT)
    assert read_stored(stored, "m.t") == RESULT


@pytest.mark.parametrize("stored", ["{", "null", "7", '"x"', '{"status": "SUCCESS", "result": null}'])
def test_what_is_no_result_has_an_unknown_end(stored: str) -> None:
    """Somebody else wrote there; the call was run, all the same."""
    assert read_stored(stored, "m.t").error_code == "outcome_unknown"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            '{"v":9,"tool_name":"a.b","success":false,"error":"no","error_code":"moon","effect_state":"none","tide":1}',
            "internal",
        ),
        ('{"tool_name":"a.b","success":false,"error":"no","error_code":"busy","effect_state":"none","tide":1}', "busy"),
        (
            '{"tool_name":"a.b","success":false,"error":"no","error_code":"busy","effect_state":"none","audit":{"call_id":"c","tool":"a.b","ts":1,"tide":1}}',
            "busy",
        ),
    ],
)
def test_what_is_known_of_a_newer_result_is_read(text: str, code: str) -> None:
    """What has happened is as true as in any other; a code that nobody here knows is the fleet's own matter."""
    result = read_stored(text, "a.b")

    assert (result.error, result.error_code, result.effect_state) == ("no", code, "none")
