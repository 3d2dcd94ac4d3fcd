"""Which values are recognized as small ones, and that no schema's price is left out for them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.there import there
from toolfleet_registry.contracts import Caller, ToolCall
from toolfleet_registry.policy.call_faults import fault_in_call
from toolfleet_registry.schemas.arguments import MAX_VALUES, fault_in, size_of
from toolfleet_registry.schemas.effort import MOST_BYTES, MOST_VALUES, WEIGHT_OF_SMALL, is_small, load_of

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=40), inner, max_size=8),
    max_leaves=60,
)
_ITSELF: dict[str, Any] = {}
_ITSELF["self"] = _ITSELF


@pytest.mark.parametrize(
    "value",
    [
        {"title": "a note", "tags": ["a", "b"], "number": -1.5, "nested": {"keys": [1, 2, None, True, 0.0]}},
        {},
        [[[]]],
        {"text": "x" * 15_984},
    ],
)
def test_usual_arguments_are_small(value: Any) -> None:
    """A few ASCII texts and usual numbers, however nested."""
    assert is_small(value)


@pytest.mark.parametrize(
    "value",
    [
        {"text": "x" * 15_985},
        {"x" * 4_001: None},
        {"text": "é"},
        {"é": 1},
        {"half": "\ud800"},
        {"number": 2**53},
        {"number": float("nan")},
        {"number": float("-inf")},
        {"number": 1e300},
        {"number": 1e-300},
        {1: "a name that is no text"},
        {"set": {1}},
        {"bytes": b"1"},
        {"many": [0] * MOST_VALUES},
        {str(number): 0 for number in range(MOST_VALUES)},
        _ITSELF,
    ],
)
def test_what_is_large_or_odd_is_not_small(value: Any) -> None:
    """It is looked at more closely elsewhere, whether it is JSON or not."""
    assert not is_small(value)


@given(_JSON)
def test_a_small_value_has_no_fault_and_little_weight(value: Any) -> None:
    """Whatever it is: it is JSON, and weighs no more than is taken for granted."""
    if not is_small(value):
        return
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert fault_in({"value": value}) is None
    load = there(load_of(value, most=MAX_VALUES))
    assert sum(load.weights) <= WEIGHT_OF_SMALL


def test_the_heaviest_small_value_weighs_what_is_taken_for_granted() -> None:
    """As many names and fractions as there may be, and all characters in names."""
    names = [f"{number:02d}{'x' * 83}" for number in range(MOST_VALUES - 1)]
    heaviest = dict.fromkeys(names, 0.5)
    load = load_of(heaviest, most=MAX_VALUES)
    assert is_small(heaviest)
    assert load is not None
    assert sum(load.weights) <= WEIGHT_OF_SMALL


@pytest.mark.parametrize(
    "value",
    [
        {"text": "\x00" * 15_984},
        {"\x00" * 3_999: None},
        dict.fromkeys([f"{number:02d}{chr(0) * 83}" for number in range(MOST_VALUES - 1)], -1.2345678901234567e-18),
    ],
)
def test_a_small_value_has_no_more_bytes_than_is_taken_for_granted(value: dict[str, Any]) -> None:
    """Though each character is written as an escape; and where fewer may be sent, they are counted."""
    assert is_small(value)
    assert size_of(value) <= MOST_BYTES
    call, caller = ToolCall(tool_name="owls.count", arguments=value), Caller(permission="user")
    assert fault_in_call(call, caller, most_bytes=MOST_BYTES, are_small=True) is None
    assert fault_in_call(call, caller, most_bytes=size_of(value) - 1, are_small=True) is not None
