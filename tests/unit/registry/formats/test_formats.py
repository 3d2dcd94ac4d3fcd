"""What a model sees, and how its answer becomes a call."""

import json
import re
from typing import Any

import pytest

from toolfleet_registry.contracts import ToolCall, ToolDefinition, ToolParameter
from toolfleet_registry.formats import call_from_openai, tools_to_openai_format

WEB_SEARCH = ToolDefinition(
    name="research.web_search",
    description="Search the web and return results",
    parameters=[
        ToolParameter(name="query", type="string", description="Search query", required=True),
        ToolParameter(name="max_results", type="integer", description="Max results", required=False),
    ],
)
ODD = [
    ToolDefinition(name=name) for name in ("a.b_c", "a_b.c", "a.b.c", "9.9", "a.é", "m." + "x" * 190, "a._b", "a.b__c")
]


def answer(name: Any, arguments: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_definition_becomes_a_function() -> None:
    """The shape that OpenAI's Chat Completions and all that copy them take."""
    assert tools_to_openai_format([WEB_SEARCH]) == [
        {
            "type": "function",
            "function": {
                "name": "research__web_search",
                "description": "Search the web and return results",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "query": {"type": "string", "description": "Search query"},
                        "max_results": {"type": "integer", "description": "Max results"},
                    },
                    "required": ["query"],
                },
            },
        }
    ]


def test_the_order_is_by_name_and_the_text_is_the_same_each_time() -> None:
    """A prompt cache holds, however the tools came."""
    forwards = json.dumps(tools_to_openai_format(ODD))
    assert json.dumps(tools_to_openai_format(reversed(ODD))) == forwards
    assert len(tools_to_openai_format(tool for tool in ODD)) == len(ODD)


def test_every_name_is_accepted_by_providers_and_finds_back() -> None:
    """Whatever a tool is called here."""
    for tool, function in zip(sorted(ODD, key=lambda tool: tool.name), tools_to_openai_format(ODD), strict=True):
        name = function["function"]["name"]
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name)
        assert call_from_openai(answer(name, "{}"), ODD) == ToolCall(tool_name=tool.name)


def test_an_answer_becomes_a_call() -> None:
    """With our name, and the arguments parsed."""
    call = call_from_openai(answer("research__web_search", '{"query": "owls"}'), [WEB_SEARCH])
    assert call == ToolCall(tool_name="research.web_search", arguments={"query": "owls"})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("research.web_search", "research.web_search"),  # our own form
        ("research__fetch", "research__fetch"),  # not offered
        ("research.fetch", "research.fetch"),
        ("", ""),
        (None, ""),
        (5, ""),
    ],
)
def test_other_names_go_on_as_they_are(name: Any, expected: str) -> None:
    """The catalog refuses them with a text for the model."""
    assert call_from_openai(answer(name, "{}"), [WEB_SEARCH]).tool_name == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{}", {}),
        ("", {}),  # what some models write for a tool that needs nothing
        (None, {}),
        ({"query": "owls"}, {"query": "owls"}),  # some servers parse it themselves
        ('{"query": "ow', '{"query": "ow'),
        ('{"query": NaN}', '{"query": NaN}'),
        ("[1]", [1]),
        ('"text"', "text"),
        ("null", None),
        (7, 7),
        ("\ud800", "\ud800"),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
    ],
)
def test_any_arguments_make_a_call(arguments: Any, expected: Any) -> None:
    """Nonsense stays nonsense, for the catalog to refuse."""
    assert call_from_openai(answer("research__web_search", arguments), [WEB_SEARCH]).arguments == expected


@pytest.mark.parametrize("nonsense", [{}, {"function": None}, {"function": "x"}, {"function": {}}])
def test_an_answer_without_a_function_is_a_call_to_nothing(nonsense: dict[str, Any]) -> None:
    """It gets a result like every other call."""
    assert call_from_openai(nonsense, [WEB_SEARCH]).tool_name == ""
