"""What `@local_tool` says of a function, and what it does not take."""

from typing import Any

import pytest

from toolfleet.tags import local_tool
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.local.local_function import LocalFunction


def definition_of(function: Any) -> ToolDefinition:
    return LocalFunction.of(function).definition


@local_tool
async def owls(wood: str) -> str:
    """Count owls."""
    return wood


@local_tool()
async def larks() -> str:
    """Count larks."""
    return "none"


@local_tool(name="birds.count", effect="read", tags=["birds"])
async def count() -> int:
    """Count birds."""
    return 5


async def test_it_stands_with_and_without_parentheses() -> None:
    """Without facts a function is the tool that it is without the decorator, and stays what it was."""
    assert (definition_of(owls).name, definition_of(owls).required_permission) == ("local.owls", "user")
    assert definition_of(larks).description == "Count larks."
    assert await owls("wood") == "wood"


def test_a_tool_may_have_another_name_than_its_function() -> None:
    """Any that a tool may have; the rest is told as before."""
    tool = definition_of(count)
    assert (tool.name, tool.effect, tool.tags) == ("local.birds.count", "read", ["birds"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "1 to 192 characters without blanks"),
        ("two words", "1 to 192 characters without blanks"),
        ("o" * 193, "1 to 192 characters without blanks"),
        ("eule_ä", "more than ASCII letters"),
    ],
)
def test_a_name_that_no_tool_may_have_is_refused(name: str, reason: str) -> None:
    """Where it is written, and not when somebody looks for the tool."""
    with pytest.raises(ValueError, match=reason):
        local_tool(name=name)


def test_what_is_no_function_is_refused() -> None:
    """Such as facts without their names."""
    with pytest.raises(TypeError, match="a function, or facts by their names; not a str"):
        local_tool("guest")  # type: ignore[call-overload] # what somebody may write
