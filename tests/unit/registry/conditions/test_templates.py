"""What a poll's arguments take from its job's start: they are filled in one place and nowhere else, and within bounds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_registry.conditions.templates import check_filling, filled, takes_from_start, values_for

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_filling_touches_nothing_but_its_places(result: Any, arguments: dict[str, Any]) -> None:
    """Arguments stay as they are but for the places that name a value; and what is missing is said without any value."""
    whole = {**arguments, "taken": [{"$from": "deep.id"}], "kept": {"$from": "deep.id", "x": 1}}
    filling = values_for({"taken": whole["taken"]}, {"deep": {"id": result}})
    if result is None:
        assert filling.fault == "The start's result has nothing at 'deep.id'."
        return

    assert filling.fault is None
    assert filled(whole, filling.values) == {**arguments, "taken": [result], "kept": whole["kept"]}


def test_what_is_taken_over_is_bounded() -> None:
    """Neither a large value nor many places make a call's arguments grow without end."""
    assert "100,000 characters" in str(values_for({"a": {"$from": "@"}}, {"x": "y" * 100_000}).fault)
    with pytest.raises(ValueError, match="At most 50"):
        check_filling({"a": [{"$from": "b"}] * 51})
    with pytest.raises(ValueError, match="must name a place"):
        check_filling({"a": {"$from": 1}})
    deep: Any = {"$from": "b"}
    for _ in range(40):
        deep = [deep]
    with pytest.raises(ValueError, match="too deep"):
        check_filling({"a": deep})
    assert takes_from_start({"a": deep})
    assert not takes_from_start({"a": {"$from": "b", "c": 1}})


def test_a_value_that_is_no_json_is_not_taken_over() -> None:
    """Nothing raises."""
    assert values_for({"a": {"$from": "x"}}, {"x": object()}).fault is not None
