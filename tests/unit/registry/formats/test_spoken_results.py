"""A model is answered in the names that its provider has: of tools, and of their arguments."""

import json

import pytest

from toolfleet.formats import Format, convert, to_call
from toolfleet_registry.contracts import ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.formats import as_spoken
from toolfleet_registry.schemas.validation import checked

GREET = ToolDefinition(
    name="owls.greet",
    input_schema={"properties": {"name": {}, "filter[kind]": {"type": "integer"}}, "additionalProperties": False},
)
TOOLS = [GREET, ToolDefinition(name="owls.count"), ToolDefinition(name="research.web_search")]


def asked(name: str, format: Format = "anthropic", *, dotted: bool = False) -> ToolCall:  # noqa: A002 - the face's word
    return to_call({"name": name, "input": {}, "args": {}, "arguments": {}}, format, TOOLS, dotted=dotted)


def refused(call: ToolCall, code: str, error: str, hint: str | None = None) -> ToolResult:
    result = ToolResult.refused(call.tool_name, code, error, hint=hint)  # type: ignore[arg-type] # one of them
    return as_spoken(result, call.spoken)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("owls__nothing", "No tool owls__nothing; did you mean owls__count?"),
        ("owls_greet", "No tool owls_greet; did you mean owls__greet?"),
        ("Owls__Greet", "No tool Owls__Greet; did you mean owls__greet?"),
        ("owls.great", "No tool owls.great; did you mean owls__greet or owls__count?"),
        ("websearch", "No tool websearch; did you mean research__web_search?"),
        ("xyz", "No tool xyz."),
        ("", "The call names no tool."),
        ("\ud800", "No tool ?."),
        ("x" * 5_000, f"No tool {'x' * 256}…."),
    ],
)
def test_a_name_that_was_not_offered_is_answered_with_those_that_were(name: str, error: str) -> None:
    """And never with a form of name that the provider forbids."""
    call = asked(name)
    for code in ("invalid_tool_name", "unknown_module", "unknown_tool"):
        result = refused(call, code, f"Invalid tool name format: {name[:9]}. Expected 'module.tool_name'.")
        assert (result.error, result.error_code) == (error, code)
        assert result.tool_name == name


@pytest.mark.parametrize(
    ("format", "dotted", "name"),
    [("openai_chat", False, "owls__greet"), ("gemini", True, "owls.greet"), ("mcp", True, "owls.greet")],
)
def test_a_tool_is_called_what_the_provider_calls_it(format: Format, dotted: bool, name: str) -> None:  # noqa: A002 - as above
    """In errors and hints of the fleet and of the module; another tool's name stays as it is."""
    offer = json.dumps(convert([GREET], format, dotted=dotted))
    assert f'"{name}"' in offer
    spoken = {"function": {"name": name, "arguments": "{}"}, "name": name}
    call = to_call(spoken, format, TOOLS, dotted=dotted)
    text = "owls.greet failed, not owls.greet_all nor my-owls.greet: 'owls.greet' needs 'admin'. See owls.greet."
    said = f"{name} failed, not owls.greet_all nor my-owls.greet: '{name}' needs 'admin'. See {name}."

    result = refused(call, "permission_denied", text, hint="Use owls.greet.")
    assert (result.error, result.hint, result.tool_name) == (said, f"Use {name}.", "owls.greet")


def test_a_tool_that_has_gone_is_answered_with_those_that_are_there() -> None:
    """In the catalog's hint as well."""
    result = refused(
        asked("owls__greet"), "unknown_tool", "Unknown tool: owls.greet", hint="Did you mean owls.great or owls.meet?"
    )
    assert (result.error, result.hint) == ("Unknown tool: owls__greet", "Did you mean owls__great or owls__meet?")


def test_an_argument_is_called_what_the_provider_calls_it() -> None:
    """Anthropic takes no brackets in a property's name, so the model knows it by another."""
    (offer,) = convert([GREET], "anthropic")
    (shown,) = offer["input_schema"]["properties"].keys() - {"name"}
    call = to_call({"name": "owls__greet", "input": {shown: "x", "nam": "Ada"}}, "anthropic", TOOLS)
    fault = checked(GREET, call.arguments).fault
    assert fault is not None
    error = refused(call, "invalid_arguments", fault).error or ""

    assert shown in error
    assert "filter[kind]" not in error
    assert "'nam' (did you mean 'name'?)" in error


def test_what_a_program_asks_for_is_answered_as_ever() -> None:
    """Names without a model have dots, and a success is nobody's to change."""
    call = ToolCall(tool_name="owls.greet")
    assert refused(call, "unknown_tool", "Unknown tool: owls.greet").error == "Unknown tool: owls.greet"
    done = ToolResult.ok("owls.greet", "owls.greet")
    assert as_spoken(done, asked("owls__greet").spoken) is done


def test_how_a_call_was_spoken_changes_no_call_and_goes_nowhere() -> None:
    """It is equal to the same call of a program, and written as that one."""
    call, same = asked("owls__greet"), ToolCall(tool_name="owls.greet")
    assert call == same
    assert call.model_dump_json() == same.model_dump_json()
    assert "spoken" not in json.dumps(ToolCall.model_json_schema())
