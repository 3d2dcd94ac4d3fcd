"""Messages are one JSON string in which everything passes unchanged."""

import json
from typing import Any

import pytest
from kombu.utils.json import loads as kombu_loads

from toolfleet_registry.contracts import Caller, PublishedCall, ToolResult
from toolfleet_tasks import wire

AWKWARD = [
    {"__type__": "datetime", "__value__": "2020-01-01T00:00:00"},  # kombu would make a datetime of it
    {"__type__": "nonsense", "__value__": 1},  # kombu would raise
    {"deep": [{"__type__": "uuid", "__value__": {"hex": "x"}}]},
    {"text": "\ud800 half a character"},  # a lone surrogate is no UTF-8
    {"emoji": "🦉", "zero": "\x00", "line": "\u2028"},
    {"big": 2**70, "tiny": 1e-300, "nothing": None, "yes": True},
    {"": {"": []}},
]


def published(arguments: dict[str, Any]) -> PublishedCall:
    return PublishedCall(
        call_id="c1",
        tool_name="research.search",
        arguments=arguments,
        user_id="u1",
        caller=Caller(user_id="u1", permission="user", allowed_modules=frozenset({"research"})),
        effect="read",
        limit_seconds=30,
        published_at=1.5,
        deadline_at=2.5,
    )


@pytest.mark.parametrize("value", AWKWARD)
def test_arguments_pass_unchanged(value: dict[str, Any]) -> None:
    """What an agent sends is what a worker reads, also through kombu's own serializer around it."""
    call = published(value)
    through_kombu = kombu_loads(json.dumps([[wire.dump(call)], {}, {}]))[0][0]

    assert wire.load(PublishedCall, through_kombu) == call


@pytest.mark.parametrize("value", AWKWARD)
def test_results_pass_unchanged(value: dict[str, Any]) -> None:
    """What a module answers is what the agent gets."""
    result = ToolResult.ok("research.search", [value])

    assert wire.load(ToolResult, wire.dump(result)) == result


def test_all_modules_stay_all_modules() -> None:
    """A caller's `*` is not turned into a set of one character."""
    caller = Caller(allowed_modules="*")

    assert wire.load(Caller, wire.dump(caller)).allowed_modules == "*"


def test_an_unknown_field_is_refused() -> None:
    """Our own messages are strict: a field that this version does not know is an error, not silence."""
    with pytest.raises(ValueError, match="surprise"):
        wire.load(Caller, '{"surprise": 1}')


def test_not_a_number_is_refused() -> None:
    """NaN is no JSON: it never gets into a queue."""
    with pytest.raises(ValueError, match="JSON compliant"):
        wire.dump(published({"x": float("nan")}))
