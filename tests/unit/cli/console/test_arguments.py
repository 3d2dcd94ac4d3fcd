"""Arguments from words, read as what the tool takes."""

from typing import Any

import pytest
import typer

from toolfleet_cli.commands.call import read_arguments
from toolfleet_registry.contracts import ToolDefinition, ToolParameter

FLAT = ToolDefinition(
    name="owls.find",
    parameters=[
        ToolParameter(name=name, type=name)
        for name in ("string", "integer", "number", "boolean", "array", "object", "int", "owlish")
    ],
)
SCHEMA = ToolDefinition(
    name="owls.find",
    input_schema={
        "type": "object",
        "properties": {
            "integer": {"type": "integer"},
            "maybe_integer": {"type": ["integer", "null"]},
            "text_or_integer": {"type": ["integer", "string"]},
            "either": {"anyOf": [{"type": "integer"}, {"type": "array"}]},
            "either_or_text": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
            "anything": {},
            "odd": True,
        },
    },
)


@pytest.mark.parametrize(
    ("word", "argument"),
    [
        ("string=3", {"string": "3"}),
        ("integer=3", {"integer": 3}),
        ("number=3.5", {"number": 3.5}),
        ("boolean=true", {"boolean": True}),
        ("array=[1, 2]", {"array": [1, 2]}),
        ('object={"a": 1}', {"object": {"a": 1}}),
        ("int=3", {"int": 3}),  # one of the usual other names
        ("owlish=3", {"owlish": "3"}),  # a type that we do not know
        ("other=3", {"other": "3"}),  # an argument that the tool does not know
        ("integer=three", {"integer": "three"}),  # the fleet says what is wrong with it
        ("string=", {"string": ""}),
        ("string=a=b", {"string": "a=b"}),
        ("string=a:=b", {"string": "a:=b"}),
        ("string=two\nlines", {"string": "two\nlines"}),
        ("string:=3", {"string": 3}),
        ('string:="3"', {"string": "3"}),
        ("other:=null", {"other": None}),
    ],
)
def test_a_word_is_read_as_the_type_of_its_parameter(word: str, argument: Any) -> None:
    """`=` is text unless the tool wants something else; `:=` is always JSON."""
    assert read_arguments([word], None, FLAT) == argument


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("integer=3", 3),
        ("maybe_integer=3", 3),
        ("maybe_integer=null", None),
        ("text_or_integer=3", "3"),  # text may be meant
        ("either=[3]", [3]),
        ("either_or_text=3", "3"),
        ("anything=3", "3"),
        ("odd=3", "3"),
        ("missing=3", "3"),
    ],
)
def test_a_full_schema_says_the_types_too(word: str, value: Any) -> None:
    """Alternatives count: a value is text wherever text is among them."""
    assert list(read_arguments([word], None, SCHEMA).values()) == [value]


def test_without_a_tool_everything_is_text() -> None:
    """A tool that is unknown is the fleet's to refuse, not ours."""
    assert read_arguments(["a=1", "b:=1"], None, None) == {"a": "1", "b": 1}


def test_words_go_over_the_whole() -> None:
    """`--args` gives all arguments, and a word changes one of them."""
    assert read_arguments(["a=2"], '{"a": 1, "b": {"c": [1]}}', None) == {"a": "2", "b": {"c": [1]}}


def test_the_whole_alone_may_be_anything() -> None:
    """What is no object is for the fleet to refuse."""
    assert read_arguments([], "[1]", None) == [1]
    assert read_arguments([], None, None) == {}


@pytest.mark.parametrize(
    ("words", "whole", "message"),
    [
        (["owls"], None, "'owls' is neither name=text nor name:=JSON."),
        (["=owls"], None, "'=owls' is neither name=text nor name:=JSON."),
        (["a:=owls"], None, "the value of a is not JSON"),
        ([], "{", "the value of --args is not JSON"),
        (["a=1"], "[1]", "--args must be a JSON object"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words: list[str], whole: str | None, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        read_arguments(words, whole, FLAT)
