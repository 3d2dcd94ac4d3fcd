"""The messages that cross a process, what an audit line says of decisions, and the wishes of modules to be asked later."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from toolfleet_registry import contracts
from toolfleet_registry.contracts import (
    Audit,
    Caller,
    Conversation,
    ModuleManifest,
    ModuleStatus,
    PublishedCall,
    ToolCall,
    ToolDefinition,
    ToolParameter,
    ToolResult,
)
from toolfleet_registry.contracts.attempts import LONGEST_SECONDS, parse_retry_after
from toolfleet_registry.contracts.calls import collecting, note

CALL = PublishedCall(
    call_id="c1",
    tool_name="git.push",
    arguments={"a": [1, None, {"b": "ü"}]},
    user_id="u1",
    caller=Caller(user_id="u1", permission="admin", allowed_modules=frozenset({"git"})),
    effect="once",
    limit_seconds=30,
    published_at=1.5,
    deadline_at=99.5,
)
OURS = [
    ToolCall(tool_name="git.push", arguments={"a": 1}),
    Caller(allowed_modules="*"),
    Caller(allowed_modules=frozenset({"git"})),
    Conversation(platform="matrix"),
    CALL,
    ToolResult.ok("git.push", [1, {"a": None}]),
    ToolResult.refused("git.push", "permission_denied", "no"),
    ToolResult.failed("git.push", "timed_out", "late", effect_state="unknown", retryable=True).model_copy(
        update={"audit": Audit(call_id="c1", tool="git.push", ts=1.0, attempts=2)}
    ),
    ModuleStatus(module="git", ok=True, tools=3, closed_tools=("git.x",), age_seconds=1.5),
]


@pytest.mark.parametrize("message", OURS, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_way(message: BaseModel) -> None:
    """As JSON, and back to the same value."""
    assert type(message).model_validate_json(message.model_dump_json()) == message


@pytest.mark.parametrize("message", OURS, ids=lambda message: type(message).__name__)
def test_our_messages_know_all_their_fields(message: BaseModel) -> None:
    """One more is a mistake of ours, and cannot be overlooked."""
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        type(message).model_validate({**message.model_dump(), "surprise": 1})


@pytest.mark.parametrize("update", [None, {}, {"audit": Audit(call_id="c2", tool="git.push", ts=2.0), "hint": "Ask."}])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("message", [message for message in OURS if isinstance(message, ToolResult)])
def test_a_message_is_copied_as_pydantic_copies_it(
    message: ToolResult, update: dict[str, Any] | None, deep: bool
) -> None:
    """With the fields that were set, and nothing of the message that it was made from but its values."""
    before = message.model_dump()
    copied, expected = (
        copy(message, update=update, deep=deep) for copy in (ToolResult.model_copy, BaseModel.model_copy)
    )

    assert copied == expected
    assert copied.model_dump(exclude_unset=True) == expected.model_dump(exclude_unset=True)
    assert (copied.result is message.result) == (expected.result is message.result)
    assert (hash(copied.audit), copied.model_fields_set) == (hash(expected.audit), expected.model_fields_set)
    assert message.model_dump() == before
    assert copied is not message


def test_every_message_is_frozen() -> None:
    """What was sent stays what it was."""
    models = [model for model in vars(contracts).values() if isinstance(model, type) and issubclass(model, BaseModel)]
    assert len(models) > 10
    assert all(model.model_config.get("frozen") for model in models if model is not BaseModel)
    with pytest.raises(ValidationError, match="frozen"):
        CALL.user_id = "somebody else"  # type: ignore[misc] # the fact itself


def test_a_modules_fields_that_we_do_not_know_are_ignored() -> None:
    """Modules are deployed at other times than we are."""
    manifest = ModuleManifest.model_validate(
        {
            "module_name": "git",
            "build": 7,
            "tools": [{"name": "git.push", "icon": "x", "parameters": [{"name": "a", "type": "string", "max": 3}]}],
        }
    )
    assert manifest.tools == [ToolDefinition(name="git.push", parameters=[ToolParameter(name="a", type="string")])]


def test_the_least_that_a_module_can_say() -> None:
    """A tool is for guests, a parameter is required, and an effect is not declared, unless it says so."""
    tool = ToolDefinition.model_validate({"name": "a.b", "parameters": [{"name": "x", "type": "string"}]})
    assert tool.required_permission == "guest"
    assert tool.parameters[0].required
    assert tool.effect is None
    assert tool.timeout_seconds is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "ab"},
        {"name": "a." + "x" * 300},
        {"name": "a.b", "effect": "sometimes"},
        {"name": "a.b", "timeout_seconds": 0},
        {"name": "a.b", "timeout_seconds": float("inf")},
        {"name": "a.b", "input_schema": []},
        {"name": "a.b", "parameters": [{"name": "", "type": "string"}]},
    ],
)
def test_a_definition_has_its_limits(wrong: dict[str, Any]) -> None:
    """A closed set is closed, and a limit of time is one."""
    with pytest.raises(ValidationError):
        ToolDefinition.model_validate(wrong)


def test_a_call_takes_what_a_model_writes() -> None:
    """`ToolFleet.call` judges it; two calls share no arguments."""
    assert ToolCall(tool_name="nonsense", arguments=[None]).arguments == [None]
    assert ToolCall(tool_name="a.b").arguments == {}
    assert ToolCall(tool_name="a.b").arguments is not ToolCall(tool_name="a.b").arguments


def test_what_a_result_says_about_the_effect() -> None:
    """Done, surely not, or what the maker of a failure knows."""
    assert ToolResult.ok("a.b", 1).effect_state == "done"
    refused = ToolResult.refused("a.b", "unknown_tool", "Unknown tool: a.b", hint="Did you mean a.c?")
    assert (refused.success, refused.effect_state, refused.retryable) == (False, "none", False)
    failed = ToolResult.failed("a.b", "module_error", "oops", effect_state="unknown", retryable=True, hint="wait")
    assert (failed.success, failed.effect_state, failed.retryable, failed.hint) == (False, "unknown", True, "wait")


def test_a_code_outside_the_set_is_refused() -> None:
    """Agents branch on it."""
    with pytest.raises(ValidationError):
        ToolResult.model_validate({"tool_name": "a.b", "success": False, "error_code": "whatever"})


def test_a_callers_modules_may_be_a_list_in_json() -> None:
    """Or a star; any other text is no set of modules."""
    assert Caller.model_validate_json('{"allowed_modules": ["git"]}').allowed_modules == frozenset({"git"})
    assert Caller.model_validate_json('{"allowed_modules": "*"}').allowed_modules == "*"
    with pytest.raises(ValidationError):
        Caller.model_validate({"allowed_modules": "git"})


async def test_decisions_are_those_of_the_call_that_runs() -> None:
    """Calls side by side collect their own; also what is decided in a task that a call has made."""

    async def call(number: int) -> dict[str, str]:
        decisions = collecting()
        note("gate", f"allowed {number}")
        await asyncio.create_task(decide(number))
        return decisions

    async def decide(number: int) -> None:
        note("permission", str(number))

    first, second = await asyncio.gather(call(1), call(2))

    assert first == {"gate": "allowed 1", "permission": "1"}
    assert second == {"gate": "allowed 2", "permission": "2"}


def test_what_was_decided_elsewhere_comes_first() -> None:
    """An agent's decisions travel with its call; a later word at the same point holds."""
    sent = {"gate": "allowed", "limits": "allowed"}
    decisions = collecting(sent)
    note("limits", "denied")

    assert decisions == {"gate": "allowed", "limits": "denied"}
    assert sent["limits"] == "allowed"


async def test_where_nobody_collects_a_note_is_dropped() -> None:
    """Middleware works the same without an audit."""
    await asyncio.get_running_loop().run_in_executor(None, note, "gate", "allowed")


NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("1.5", 1.5),  # not in the standard, and sent
        ("1e9", LONGEST_SECONDS),
        ("9" * 5000, None),  # overflows to infinity
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30),
        ("Thu, 01 Jan 2026 13:00:30 +0100", 30),
        ("Thu, 01 Jan 2026 12:00:30 -0000", 30),  # a date without a zone
        ("Thursday, 01-Jan-26 12:00:30 GMT", 30),  # the standard's obsolete forms
        ("Thu Jan  1 12:00:30 2026", 30),
        ("Thu, 01 Jan 2015 12:00:00 GMT", 0),  # past
        ("Thu, 01 Jan 9999 12:00:00 GMT", LONGEST_SECONDS),
        ("Thu, 01 Jan 99999 12:00:00 GMT", None),
        ("Thu, 32 Jan 2026 12:00:00 GMT", None),
        ("Thu, 01 Jan 2026 12:00:00 +9999999999", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_seconds_and_dates_count_and_nonsense_does_not(value: str | None, seconds: float | None) -> None:
    """Seconds from now, never negative and never more than a day; `None` is no wish."""
    assert parse_retry_after(value, now=NOW) == seconds
