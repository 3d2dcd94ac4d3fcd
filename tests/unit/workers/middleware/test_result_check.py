"""A module's result is held against its tool's output schema before anybody takes it for one."""

from typing import Any

import pytest
import structlog

from support.published_call import published
from support.workers.known_tools import FewTools
from toolfleet_registry.contracts import Effect, PublishedCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_tasks.ledger.retry import decide
from toolfleet_workers.middleware import ResultCheck
from toolfleet_workers.runner import Proceed

SECRET = "s3cret-9f"
COUNT = {"type": "object", "properties": {"owls": {"type": "integer"}}, "required": ["owls"]}


def answering(result: ToolResult, outcome: Outcome = Outcome.SUCCESS) -> Proceed:
    async def proceed(call: PublishedCall) -> Attempt:
        return Attempt(outcome, result)

    return proceed


async def attempt_at(schema: dict[str, Any] | None, result: Any) -> Attempt:
    check = ResultCheck(FewTools(ToolDefinition(name="owls.count", output_schema=schema)))
    return await check(published("owls.count"), answering(ToolResult.ok("owls.count", result)))


@pytest.mark.parametrize("schema", [None, {}, COUNT, {"type": ["object", "null"]}])
async def test_what_its_schema_says_passes(schema: dict[str, Any] | None) -> None:
    """As it is, and without a schema anything."""
    attempt = await attempt_at(schema, {"owls": 3})

    assert attempt.outcome is Outcome.SUCCESS
    assert attempt.result.result == {"owls": 3}


async def test_structure_with_blocks_beside_it_is_held_to_the_schema() -> None:
    """As it is where it is the whole result; the blocks are no part of what the schema describes."""
    blocks = [{"type": "text", "text": "three owls"}]
    for structure, is_right in (({"owls": 3}, True), ({"owls": "3"}, False), ({}, False)):
        attempt = await attempt_at(COUNT, {"content": blocks, "structured": structure})
        assert (attempt.outcome is Outcome.SUCCESS) == is_right
    own = {"type": "object", "properties": {"content": {"type": "array", "maxItems": 0}}}
    assert (await attempt_at(own, {"content": []})).outcome is Outcome.SUCCESS
    assert (await attempt_at(own, {"content": blocks})).outcome is not Outcome.SUCCESS


@pytest.mark.parametrize("result", [{"owls": SECRET}, {SECRET: 3}, SECRET, [SECRET], None])
async def test_anything_else_is_an_invalid_response(result: Any) -> None:
    """Its effect has happened, and neither the text nor the log repeats anything of it."""
    with structlog.testing.capture_logs() as lines:
        attempt = await attempt_at(COUNT, result)

    assert attempt.result.error_code == "invalid_response"
    assert attempt.result.effect_state == "done"
    assert str(attempt.result.error).startswith(
        "Tool execution error: the module's result is not what its schema says: result"
    )
    assert SECRET not in attempt.result.model_dump_json()
    assert [line["event"] for line in lines] == ["tool_result_invalid"]
    assert SECRET not in str(lines)


@pytest.mark.parametrize("hint", [None, "Link: </owls?page=2>"])
async def test_a_result_that_no_schema_speaks_of_passes_and_says_so(hint: str | None) -> None:
    """Its module says why; beside what it says to the model."""
    check = ResultCheck(FewTools(ToolDefinition(name="owls.count", output_schema=COUNT)))
    result = ToolResult.ok("owls.count", None).model_copy(update={"hint": hint})

    async def proceed(call: PublishedCall) -> Attempt:
        return Attempt(Outcome.SUCCESS, result, unchecked="its status is 204")

    attempt = await check(published("owls.count"), proceed)

    assert (attempt.outcome, attempt.result.success) == (Outcome.SUCCESS, True)
    lines = [*([hint] if hint else []), "The result was not checked against the tool's schema: its status is 204."]
    assert attempt.result.hint == "\n".join(lines)


@pytest.mark.parametrize(
    ("effect", "is_retried"), [("once", False), (None, False), ("read", True), ("idempotent", True)]
)
async def test_only_what_is_harmless_is_tried_again(effect: Effect | None, is_retried: bool) -> None:
    """As after any answer that is of no use; nobody else may repeat it either."""
    attempt = await attempt_at(COUNT, {})
    follows = decide(attempt, effect, attempts=1, seconds_left=60, so_far="none", longest_delay=60, jitter=0)

    assert (follows.delay is not None) == is_retried
    assert (follows.result.retryable, follows.result.effect_state) == (is_retried, "done")


async def test_a_failure_is_not_looked_at() -> None:
    """What a module says of a failure has no schema."""
    failure = ToolResult.failed("owls.count", "module_error", "I cannot.", effect_state="unknown")
    check = ResultCheck(FewTools(ToolDefinition(name="owls.count", output_schema=COUNT)))

    attempt = await check(published("owls.count"), answering(failure, Outcome.FAILED))

    assert attempt.result is failure


async def test_a_tool_that_nobody_knows_passes() -> None:
    """A worker that has just started does not hold up what works."""
    attempt = await ResultCheck(FewTools())(published("owls.count"), answering(ToolResult.ok("owls.count", 1)))

    assert attempt.result.success
