"""The messages that cross a process."""

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
