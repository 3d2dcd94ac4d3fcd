"""What a poll must bring and takes from its job's start: what can be asked, what it means, and that nobody's expression can hold a worker up."""

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.programs.counted_calls import counted
from toolfleet_registry.conditions import (
    TooMuch,
    Walk,
    check_condition,
    check_filling,
    filled,
    fulfils,
    missing_path,
    takes_from_start,
    values_for,
)

MOST_CALLS = 2_000_000  # of functions, in one walk of 50,000 steps: the longest here takes 830,000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
TOKENS = st.sampled_from([
    "a", "b", "status", ".", "[", "]", "*", "[]", "[?", "(", ")", "|", "||", "&&", "!", "==", "<", ">=", "@", "&", ",", "`1`",
    "`[1,2]`", "'x'", "length(", "contains(", "keys(", "sum(", "max(", "0", "-1", ":", "{", "}", '"a-b"', " ",
])  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        ({"status": ["completed", "failed"]}, {"status": "failed"}, True),
        ({"status": ["completed", "failed"]}, {"status": "running"}, False),
        ({"status": "done", "task.left": 0}, {"status": "done", "task": {"left": 0}}, True),
        ({"status": "done", "task.left": 0}, {"status": "done", "task": {"left": 1}}, False),
        ({"ok": True}, {"ok": 1}, False),  # JSON's true is not 1
        ({"n": 1}, {"n": 1.0}, True),
        ({"error": None}, {}, True),  # what is not there is null, as in JMESPath
        ({"status": "done"}, "done", False),
        ("progress >= `1`", {"progress": 1.0}, True),
        ("progress >= `1`", {"progress": "1"}, False),  # no error: not fulfilled
        ("items[?state!='done'] | length(@) == `0`", {"items": [{"state": "done"}]}, True),
        ('contains(`["a", "b"]`, status)', {"status": "b"}, True),
        ("length(missing)", {}, False),
        ("@", [], False),
        ("@", 0, True),  # JMESPath takes 0 for true
    ],
)
def test_a_condition_holds_or_not(condition: Any, value: Any, holds: bool) -> None:
    """A mapping wants each path's value, or one of several; an expression must be true as JMESPath has it."""
    check_condition(condition)

    assert fulfils(condition, value) is holds


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("", "no JMESPath"),
        ("a[?b", "no JMESPath"),
        ("job-state == 'x'", "needs quotes"),
        ("[a, b]", "multi select list"),
        ("{a: b}", "multi select dict"),
        ("map(&a, b)", "calls 'map'"),
        ("sort_by(a, &b)", "calls 'sort_by'"),
        ("contains(a)", "with 1 arguments"),
        ("`[1, 2]`[?@]", "literal"),
        ("`{}`", "literal"),
        ("a" * 501, "500 characters"),
        ("(" * 499, "no JMESPath"),
        ("!" * 499 + "a", "no JMESPath"),
        (".".join(["a"] * 30) + "|" + "|".join(["b"] * 30), "nested too deeply"),
        ({}, "1 to 20 paths"),
        ({f"a{i}": 1 for i in range(21)}, "1 to 20 paths"),
        ({"a": {"b": 1}}, "must have a text"),
        ({"a": [[1]]}, "must have a text"),
        ({"a": []}, "must have a text"),
        ({"a": ["x"] * 101}, "1 to 100"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(condition: Any, words: str) -> None:
    """It is refused before a job is made, with what is wrong with it."""
    with pytest.raises(ValueError, match=words) as error:
        check_condition(condition)

    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("condition", "value", "path"),
    [
        ({"stauts": ["done"]}, {"status": "running"}, "stauts"),
        ({"status": "done", "task.left": 0}, {"status": "running", "task": {}}, "task.left"),
        ({"status": "done"}, "running", "status"),
        ({"status": "done"}, {"status": "running"}, None),
        ({"error": None, "status": "done"}, {"status": "running"}, None),  # it may be missing
        ("stauts == 'done'", {"status": "running"}, None),  # who can say
        ({"a[?": 1}, {}, None),
    ],
)
def test_a_path_that_leads_nowhere_is_found(condition: Any, value: Any, path: str | None) -> None:
    """It is most likely mistyped: whoever waits for it should hear of it."""
    assert missing_path(condition, value) == path


@given(st.lists(TOKENS, max_size=25).map("".join) | st.text(max_size=60), JSON)
def test_no_expression_raises_or_is_slow(expression: str, value: Any) -> None:
    """Whatever is written, it is refused with `ValueError` or asked without an exception; and asking never raises anyway."""
    with contextlib.suppress(ValueError):
        check_condition(expression)
    assert fulfils(expression, value) in {True, False}
    assert fulfils({expression: value}, value) in {True, False}


@pytest.mark.parametrize(
    "expression",
    [
        "*" + ".*" * 9,
        "[][][][][][][][]",
        "[*][*][?@][?@==@]",
        "[?[?[?[?[?@]]]]]",
        "a" + "||a" * 15,
        "length(@)==`1`" + "&&contains(@,'x')" * 15,
    ],
)
def test_a_large_result_is_walked_in_a_bounded_number_of_steps(expression: str) -> None:
    """A result of a megabyte keeps nobody waiting, whatever is asked of it."""
    wide: Any = [[[[[1, 2, 3]] * 10] * 10] * 20] * 20
    named = {str(i): {str(j): {"x": [j]} for j in range(200)} for i in range(200)}
    for value in (wide, named, {"a": "x" * 1_000_000}):
        assert counted(partial(fulfils, expression, value))[1] < MOST_CALLS


@pytest.mark.parametrize(
    ("expression", "make"),
    [
        ("sum(items)==`1`", lambda: {"items": [1] * 1_500_000}),
        ("max(items)==`0`", lambda: {"items": [1] * 1_500_000}),
        ("items[]==`1`", lambda: {"items": [1] * 1_500_000}),
        ("a==b&&`false`", lambda: {"a": [[1] * 1000] * 3000, "b": [[1] * 1000] * 3000}),
        ("contains(a,b)", lambda: {"a": [[1] * 1000] * 2000, "b": [1] * 999 + [2]}),
    ],
)
def test_what_a_function_looks_through_is_counted(expression: str, make: Callable[[], Any]) -> None:
    """A result of megabytes, as often as an expression has room for, is looked through once at most: then it is too much."""
    value, many = make(), "||".join([expression] * 18)
    check_condition(many)

    def walk() -> None:
        with pytest.raises(TooMuch):
            Walk().found(many, value)

    assert counted(walk)[1] < 2 * MOST_CALLS  # a list that is flattened has 1.5 million items
    assert not fulfils(many, value)


def test_all_paths_have_their_steps_together() -> None:
    """What may be asked once may not be asked twenty times; the same goes for what arguments take."""
    value = {"items": [{"a": 1}] * 4000}
    paths = [f"length(items[*].a){' ' * number}" for number in range(20)]

    assert fulfils({paths[0]: 4000, "sum(items[*].a)": 4000}, value)
    assert not fulfils(dict.fromkeys(paths, 4000), value)
    assert values_for({"a": {"$from": paths[0]}}, value).fault is None
    assert values_for({"a": [{"$from": path} for path in paths]}, value).fault is not None


def test_a_value_that_is_no_json_is_not_fulfilled() -> None:
    """NaN is no JSON; nothing raises."""
    assert fulfils({"x": [math.nan]}, {"x": math.nan}) is False


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
