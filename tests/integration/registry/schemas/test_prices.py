"""What a check is estimated to take is what it takes at most, and what would take long is not done."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest

from support.schemas.hostile_schemas import HOSTILE
from support.schemas.random_schemas import Chance
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.schemas.checker import MOST_UNITS, Checker, SchemaWrong, compiled
from toolfleet_registry.schemas.patterns import is_deterministic, pieces_of
from toolfleet_registry.schemas.validation import checked, result_fault, schema_fault

T = TypeVar("T")

HELD = 0.05  # seconds that one check may hold a loop for
FACTOR = 3  # of a machine that does other things as well
UNIT = 1e-8  # seconds


def of(schema: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition(name="owls.count", input_schema=schema, output_schema=schema)


@pytest.mark.parametrize("name", sorted(HOSTILE.keys() - {"defaults that do not fit together"}))
def test_what_could_hold_a_loop_is_refused_before_it_is_checked(name: str) -> None:
    """For its schema, or for its size; and small arguments are checked all the same."""
    schema, value = HOSTILE[name]

    for coerces in (False, True):
        fault = checked(of(schema), value, coerces_numbers=coerces).fault or ""
        assert fault.startswith("Tool 'owls.count' is closed") or "too large" in fault
    result_fault(of(schema), value)  # which ends, whatever it says
    if schema_fault(of(schema)) is None:
        assert "too large" not in (checked(of(schema), {}).fault or "")


ROW = {
    "name": "owl",
    "email": "owl@owls.test",
    "id": "0d9aa0f9-2b2e-4a6e-8d8f-1f0b7a4f5c3e",
    "n": 3,
    "share": 0.25,
    "tags": ["a", "b"],
}
ROWS = {
    "type": "array",
    "uniqueItems": True,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 100},
            "email": {"type": "string", "pattern": r"^[\w.+-]{1,64}@[\w-]+(\.[\w-]+){1,8}$"},
            "id": {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
            "n": {"type": "integer", "minimum": 0, "maximum": 10},
            "share": {"anyOf": [{"type": "number", "minimum": 0, "exclusiveMaximum": 1}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        },
        "required": ["name", "id"],
        "additionalProperties": False,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (ROWS, [{**ROW, "name": f"owl {number}"} for number in range(200)]),
        ({"type": "array", "items": {"type": "number"}}, [0.5 + number for number in range(19_000)]),
        ({"type": "array", "items": {"type": "integer", "minimum": 0}}, list(range(19_000))),
        ({"type": "array", "items": {"type": "string", "maxLength": 100}}, ["owl"] * 19_000),
        ({"type": "string", "minLength": 1, "pattern": r"\S"}, "owls and more " * 50_000),
        ({"type": "string", "pattern": "^(?=.*[0-9])(?=.*[a-z]).{8,64}$"}, "a-long-passw0rd"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, list(range(15_000))),
    ],
    ids=lambda value: "" if isinstance(value, list | str) else value["type"],
)
def test_what_tools_say_of_large_values_is_checked(schema: dict[str, Any], value: Any) -> None:
    """Tables, columns of numbers, files: a careful estimate does not refuse what people send."""
    tool = of({"type": "object", "properties": {"x": schema}})

    assert checked(tool, {"x": value}).fault is None


@pytest.mark.parametrize(
    ("pattern", "is_certain"),
    [
        ("^[a-z0-9]+(?:-[a-z0-9]+)*$", True),
        (r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?Z?)?$", True),
        ("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", True),
        (r"^[\w.+-]{1,64}@[\w-]+(\.[\w-]+){1,8}$", True),
        ("^(https?|ftp)://[^/]+/.*$", True),
        ("a", False),  # may begin anywhere
        ("^a|b", False),
        ("^(a|ab)c", False),
        ("^a*a", False),
        ("^(a{1,2}){1,9}$", False),  # which of the two counts is meant
        ("^(a{1,2}){3}$", False),
        ("^(a*)*$", False),
        (r"^\w+é", False),
        (r"^\p{L}+a", False),
        ("^[[:alpha:]]+a", False),
        (r"^(?=a)a", False),
        (r"^(?i)a+A", False),
    ],
)
def test_patterns_that_go_on_in_one_way_only_are_known(pattern: str, is_certain: bool) -> None:
    """Where it is not certain they are not taken for such."""
    assert is_deterministic(pieces_of(pattern)) == is_certain


def timed(function: Callable[[], T]) -> tuple[T, float]:
    started_at = time.thread_time()  # what others do on this machine does not count
    return function(), time.thread_time() - started_at


def made(schema: dict[str, Any]) -> Checker | None:
    try:
        return compiled(schema)
    except SchemaWrong:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_prices_hold_against_the_clock(seed: int) -> None:
    """For random schemas of every keyword: an estimate is no less than what the check takes, and nothing holds a loop."""
    chance, admitted = Chance(seed), 0
    for _ in range(60):
        checker, compiling = timed(partial(made, chance.document()))
        assert compiling < FACTOR * HELD
        for _ in range(4 if checker else 0):
            admitted += checker is not None and holds(checker, chance.arguments())
    assert admitted > 20


def chained(length: int) -> dict[str, Any]:
    """Definitions that each refer to the next one, a level further down."""
    links = {f"a{n}": {"properties": {"x": {"$ref": f"#/$defs/a{n + 1}"}}} for n in range(length)}
    return {"$defs": {**links, f"a{length}": {}}, "$ref": "#/$defs/a0"}


def woven(size: int) -> dict[str, Any]:
    """Definitions that all refer to each other, and all hold for the same value."""
    names = range(size)
    return {
        "$defs": {
            f"a{i}": {"properties": {f"p{j}": {"$ref": f"#/$defs/a{i * j % size}"} for j in names}} for i in names
        },
        "allOf": [{"$ref": f"#/$defs/a{i}"} for i in names],
    }


def flat(size: int) -> dict[str, Any]:
    return {"properties": {f"p{n}": {"type": "string", "maxLength": n} for n in range(size)}}


@pytest.mark.slow
@pytest.mark.parametrize("schema", [chained(1_240), woven(31), flat(2_490)], ids=["chained", "woven", "flat"])
def test_the_largest_schemas_are_compiled_in_time(schema: dict[str, Any]) -> None:
    """Once for each content; with a factor for what else the machine does."""
    assert min(timed(partial(compiled, schema))[1] for _ in range(7)) < FACTOR * HELD


@pytest.mark.parametrize("schema", [chained(1_251), woven(32), flat(2_500)], ids=["chained", "woven", "flat"])
def test_what_would_take_longer_to_compile_is_refused(schema: dict[str, Any]) -> None:
    """The tool is closed, and says why."""
    assert schema_fault(of({"type": "object", **schema})) is not None


def holds(checker: Checker, value: Any) -> bool:
    """Whether a value is admitted, all of which takes no longer than it may."""
    price, pricing = timed(partial(checker.price, value, values=100_000))
    assert pricing < FACTOR * HELD
    if price is None:
        return False
    assert price <= MOST_UNITS
    is_fit, fitting = timed(partial(checker.fits, value))
    assert fitting < FACTOR * (price * UNIT + 0.002), checker.text
    explaining = 0 if is_fit else timed(partial(checker.why_not, value, "arguments"))[1]
    assert explaining < FACTOR * HELD, checker.text
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_hostile_holds_a_loop(name: str) -> None:
    """By the clock: neither as arguments, whether or not numbers are coerced, nor as a result."""
    schema, value = HOSTILE[name]
    tool = of(schema)
    schema_fault(tool)
    checked(tool, {})
    result_fault(tool, {})

    for check in (
        lambda: checked(tool, value),
        lambda: checked(tool, value, coerces_numbers=True),
        lambda: result_fault(tool, value),
    ):
        assert timed(check)[1] < FACTOR * HELD
