"""Names that every provider takes, and that no two tools share."""

import re
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.schemas.examples import examples
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.errors import InvalidToolName
from toolfleet_registry.formats import Format, convert
from toolfleet_registry.formats.dialects import DIALECTS, legal_property, meant_tool, offered_name

LEGAL: dict[Format, re.Pattern[str]] = {
    "openai_chat": re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII),
    "openai_responses": re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII),
    "anthropic": re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII),
    "gemini": re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}", re.ASCII),
    "mcp": re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII),
}
# The pieces that the names are mapped with, and anything at all.
PIECES = st.lists(
    st.sampled_from(["a", "b", "_", "__", ".", "-", "-x", "0123456789", "é", "/", "x" * 30, "9"]),
    min_size=1,
    max_size=8,
).map("".join)
METHODS = PIECES | st.text(min_size=1, max_size=20)


@st.composite
def tool_names(draw: st.DrawFn) -> str:
    """Whatever a manifest may call a tool."""
    name = f"{draw(st.sampled_from(['a', 'a_b', 'a__b', '9', 'a-x', 'a_']))}.{draw(METHODS)}"
    try:
        return str(ToolName.parse(name))
    except InvalidToolName:
        assume(condition=False)
        raise


@given(names=st.sets(tool_names(), min_size=2, max_size=12))
@settings(max_examples=examples(60), deadline=None)
def test_distinct_tools_stay_distinct_and_find_back(names: set[str]) -> None:
    """Whatever they are called, and under every name that they are offered by, to every provider."""
    tools = [ToolDefinition(name=name) for name in names]
    for provider, dotted in product(DIALECTS, (False, True)):
        offered = {name: offered_name(name, provider, dotted=dotted) for name in names}
        assert len(set(offered.values())) == len(names), (provider, dotted)
        for name, shown in offered.items():
            assert LEGAL[provider].fullmatch(shown), (provider, dotted)
            tool = meant_tool(shown, tools)
            assert tool is not None, (provider, dotted)
            assert tool.name == name, (provider, dotted)


@given(names=st.sets(st.text(max_size=80) | PIECES, min_size=2, max_size=12))
def test_distinct_properties_stay_distinct(names: set[str]) -> None:
    """And are legal."""
    for dialect in DIALECTS.values():
        if dialect.property_name is not None:
            legal = [legal_property(name, dialect.property_name) for name in names]
            assert len(set(legal)) == len(names)
            assert all(map(dialect.property_name.fullmatch, legal))


@pytest.mark.parametrize(
    ("provider", "name", "shown"),
    [
        ("mcp", "git.issue.create", "git.issue.create"),
        ("mcp", "9gag.top", "9gag.top"),
        ("mcp", f"m.{'x' * 126}", f"m.{'x' * 126}"),
        ("gemini", "git.issue.create", "git.issue.create"),
        ("openai_chat", "git.issue.create", "git__issue__create"),  # OpenAI refuses a dot
        ("anthropic", "git.push", "git__push"),
    ],
)
def test_dots_stay_where_they_are_taken(provider: Format, name: str, shown: str) -> None:
    """Elsewhere a note says under which name the tool is offered instead."""
    converted = convert([ToolDefinition(name=name)], provider, dotted=True)
    offer = converted[0]
    offer = offer["function"] if provider == "openai_chat" else offer
    offer = offer["functionDeclarations"][0] if provider == "gemini" else offer
    assert offer["name"] == shown
    assert [note.path for note in converted.notes] == ([] if shown == name else ["name"])


@pytest.mark.parametrize(
    ("provider", "name"),
    [("gemini", "9gag.top"), ("gemini", f"m.{'x' * 70}"), ("mcp", f"m.{'x' * 127}"), ("mcp", "a.é")],
)
def test_what_is_not_legal_with_its_dot_is_offered_without(provider: Format, name: str) -> None:
    """As without `dotted`."""
    assert "." not in offered_name(name, provider, dotted=True)
    assert offered_name(name, provider, dotted=True) == offered_name(name, provider)


def test_a_name_that_two_tools_are_offered_under_is_none() -> None:
    """Names with one digest can be searched for; a call by one goes to neither tool, in whatever order they are listed."""
    one, other = (ToolDefinition(name=f"owls.{'a' * 60}{end}") for end in (2113612, 2234728))
    shown = offered_name(one.name, "openai_chat")

    assert offered_name(other.name, "openai_chat") == shown
    assert [meant_tool(shown, tools) for tools in ([one, other], [other, one], [one])] == [None, None, one]
    assert meant_tool(other.name, [one, other]) is other
