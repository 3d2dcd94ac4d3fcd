"""What Celery stored becomes the one result that a caller gets."""

from typing import Any

import pytest

from toolfleet_registry.contracts import ToolResult
from toolfleet_tasks import wire
from toolfleet_tasks.results import result_of


def ended(meta: dict[str, Any]) -> ToolResult:
    return result_of(meta, tool_name="m.t", limit_seconds=30)


def failure(kind: str, message: Any = None, status: str = "FAILURE") -> dict[str, Any]:
    return {"status": status, "result": {"exc_type": kind, "exc_message": message, "exc_module": "x"}}


def test_a_workers_answer_is_passed_on() -> None:
    """A result that a worker wrote arrives as it was."""
    result = ToolResult.ok("m.t", {"owls": 3})

    assert ended({"status": "SUCCESS", "result": wire.dump(result)}) == result


@pytest.mark.parametrize(
    ("meta", "code", "effect_state"),
    [
        (failure("TimeLimitExceeded", [40.0]), "timed_out", "unknown"),  # Celery's hard limit
        (failure("SoftTimeLimitExceeded", [31.0]), "timed_out", "unknown"),  # its soft one, outside of our body
        (failure("TaskRevokedError", ["terminated"], "REVOKED"), "cancelled", "unknown"),  # interrupted while running
        (
            failure("TaskRevokedError", ["revoked"], "REVOKED"),
            "cancelled",
            "unknown",
        ),  # while queued, or before a retry
        (failure("WorkerLostError", ["SIGKILL"]), "outcome_unknown", "unknown"),  # nobody saw the end
        (failure("MaxRetriesExceededError"), "outcome_unknown", "unknown"),  # anything else
        ({"status": "FAILURE", "result": None}, "outcome_unknown", "unknown"),  # not even a reason
        ({"status": "SUCCESS", "result": {"not": "ours"}}, "outcome_unknown", "unknown"),  # somebody else's answer
        ({"status": "SUCCESS", "result": "{"}, "outcome_unknown", "unknown"),  # a torn one
    ],
)
def test_what_celery_wrote_itself_is_translated(meta: dict[str, Any], code: str, effect_state: str) -> None:
    """No exception of Celery's reaches an agent, and none claims to know what nobody knows."""
    result = ended(meta)

    assert (result.success, result.error_code, result.effect_state) == (False, code, effect_state)
    assert result.error


def test_the_hard_limit_has_the_same_text_as_our_own() -> None:
    """An agent that matches on the text finds it, whoever enforced the limit."""
    assert ended(failure("TimeLimitExceeded", [40.0])).error == "Tool execution timed out (30s)."
