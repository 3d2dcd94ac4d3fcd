"""A module's schema, or a model's arguments, can take neither the time nor the memory of others.

What is wrong here would not fail but hang, end the process, or fill the machine: so the cases run in a process of their
own that has a minute and 2 GiB.
"""

import random
import resource
from collections.abc import Callable
from typing import Any

import pytest

from support.programs.child_program import run_apart
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.schemas.effort import DEEPEST, LONGEST_CHAIN, effort_of
from toolfleet_registry.schemas.subschemas import SchemaDocument
from toolfleet_registry.schemas.validation import checked, result_fault, schema_fault

MEMORY = 2**31
SECONDS = 60
LONGEST = 1_000  # characters of a fault

Schema = dict[str, Any]
Case = tuple[Schema, list[Any]]


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


def deep(levels: int) -> Schema:
    schema: Schema = {}
    for _ in range(levels):
        schema = {"properties": {"x": schema}}
    return schema


def chained(length: int, link: Callable[[Schema], Schema], end: Schema) -> Schema:
    """Definitions that each refer to the next one."""
    links = {f"a{n}": link({"$ref": f"#/$defs/a{n + 1}"}) for n in range(length)}
    return {"$defs": {**links, f"a{length}": end}, "$ref": "#/$defs/a0"}


def both(kind: str) -> Callable[[Schema], Schema]:
    return lambda schema: {kind: [schema, schema]}


def listing(item: Schema, **more: Any) -> Schema:
    return {"properties": {"x": {"items": item, **more}}}


def alternatives(*required: str) -> Schema:
    """A tree, each of whose nodes may be of several kinds, all with the same member."""
    return {"anyOf": [{"properties": {"x": {"$ref": "#"}}, "required": [name]} for name in required]}


AB = "".join(random.Random(7).choices("ab", k=500_000))
BAD = ["x"] * 90_000

CASES: dict[str, Callable[[], Case]] = {
    "a schema in itself, 20,000 times": lambda: (deep(20_000), [{}]),
    "a schema in itself, 90 times": lambda: (deep(90), [nested(95)]),
    "a megabyte": lambda: ({"description": "x" * 2**20}, [{}]),
    "a quarter megabyte": lambda: ({"properties": {f"p{n}": {"type": "string", "maxLength": n} for n in range(4_900)}}, [{"p1": BAD}]),
    "all of very many": lambda: ({"allOf": [{"additionalProperties": {"type": "string"}}] * 4_000}, [dict.fromkeys(AB[:50], "")]),
    "all of very many, for many": lambda: (
        {"allOf": [{"additionalProperties": {"type": "string"}}] * 4_000},
        [{str(n): "" for n in range(90_000)}],
    ),
    "references in a row": lambda: (chained(4_000, lambda link: link, {}), [{}]),
    "references in a row, below each other": lambda: (chained(2_400, lambda link: {"properties": {"x": link}}, {}), [nested(99)]),
    "a row of references for each level": lambda: (
        chained(LONGEST_CHAIN - 4, lambda link: {"allOf": [link]}, {"properties": {"x": {"$ref": "#/$defs/a0"}}}),
        [nested(99)],
    ),
    "all of twice, 40 times over": lambda: (chained(40, both("allOf"), {}), [{}]),
    "any of twice, 40 times over": lambda: (chained(40, both("anyOf"), {"required": ["y"]}), [{}]),
    "any of twice, 17 times over": lambda: (chained(17, both("anyOf"), {"required": ["y"]}), [{}, nested(90)]),
    "one of twice, at each level": lambda: (alternatives("y", "z"), [nested(levels) for levels in (3, 10, 20, 99)]),
    "one of five, at each level": lambda: (alternatives(*"abcde"), [nested(levels) for levels in (3, 10, 20, 99)]),
    "nothing else, many times": lambda: (
        chained(25, lambda link: {"allOf": [link], "unevaluatedProperties": False}, {"properties": {"a": {}}}),
        [{"a": 1}, {"b": 1}],
    ),
    "a pattern that tries everything": lambda: (
        {"properties": {"x": {"pattern": r"(a+)+\1$b"}, "y": {"items": {"pattern": r"^(?=(a|aa)+$)b\1"}}}},
        [{"x": "a" * 100_000}, {"y": ["a" * 50] * 1_000}],
    ),
    "a pattern of many states": lambda: ({"properties": {"x": {"pattern": "[ab]*a[ab]{2000}c"}}}, [{"x": AB}, {"x": AB[:5_000]}]),
    "a pattern of too many states": lambda: ({"properties": {"x": {"pattern": r"(?:\w{1,1000}){1,1000}"}}}, [{"x": AB}]),
    "very many patterns": lambda: ({"patternProperties": {rf"^\w{{1,60}}{n}$": {} for n in range(4_000)}}, [{AB: 1}]),
    "a long list of allowed texts": lambda: (listing({"enum": [str(n) for n in range(20_000)]}), [{"x": BAD}, {"x": ["19999"] * 90_000}]),
    "a long list of allowed objects": lambda: (listing({"enum": [{"a": n} for n in range(15_000)]}), [{"x": [{"a": 0.5}] * 30_000}]),
    "very many wrong items": lambda: (listing({"type": "integer"}), [{"x": BAD}]),
    "very many wrong items of any of two": lambda: (listing({"anyOf": [{"type": "integer"}, {"type": "null"}]}), [{"x": BAD}]),
    "many items that miss much": lambda: (listing({"required": [f"q{n}" for n in range(2_000)]}), [{"x": [{}] * 5_000}]),
    "large wrong items": lambda: (listing({"anyOf": [{"type": "integer"}]}), [{"x": [AB] * 400}]),
    "no two equal": lambda: (listing({}, uniqueItems=True), [{"x": [{"a": [n]} for n in range(20_000)]}]),
    "defaults for very many": lambda: (
        listing({"properties": {f"d{n}": {"default": "y" * 1_000} for n in range(200)}}),
        [{"x": [{}] * 45_000}],
    ),
    "defaults that hold themselves": lambda: ({"properties": {"x": {"$ref": "#", "default": {}}, "n": {"default": 1}}}, [nested(95)]),
    "definitions that all hold each other": lambda: (
        {
            "$defs": {f"a{i}": {"properties": {f"p{j}": {"$ref": f"#/$defs/a{i * j % 30}"} for j in range(30)}} for i in range(30)},
            "allOf": [{"$ref": f"#/$defs/a{i}"} for i in range(30)],
            "default": 1,
        },
        [{"p7": {"p3": {"p11": {}}}}, nested(95)],
    ),
}  # fmt: skip


def look_at_all() -> None:
    """In a process of its own: what each tool and its calls come to."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for name, make in CASES.items():
        schema, calls = make()
        print(name, flush=True)  # noqa: T201 - the last one is shown if this process ends
        definition = ToolDefinition(name="owls.count", input_schema=schema, output_schema=schema)
        schema_fault(definition)
        for arguments in calls:
            for fault in (checked(definition, arguments).fault, result_fault(definition, arguments)):
                assert len(fault or "") <= LONGEST, name


@pytest.mark.slow
def test_nothing_hangs_and_nothing_breaks() -> None:
    """Each schema is refused, or its calls are checked or refused."""
    run_apart(look_at_all, __file__, seconds=SECONDS)


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("a schema in itself, 20,000 times", True),
        ("a schema in itself, 90 times", False),
        ("a megabyte", True),
        ("references in a row", True),
        ("all of twice, 40 times over", True),
        ("any of twice, 17 times over", False),
        ("a pattern of too many states", True),
        ("very many patterns", True),
        ("definitions that all hold each other", False),
    ],
)
def test_only_what_could_never_be_checked_is_refused(name: str, is_refused: bool) -> None:
    """Anything else is a matter of the arguments."""
    assert (schema_fault(ToolDefinition(name="owls.count", input_schema=CASES[name]()[0])) is not None) == is_refused


def test_what_takes_long_for_deep_arguments_is_checked_for_others() -> None:
    """A tree of alternatives is a usual schema."""
    tree = ToolDefinition(name="owls.count", input_schema=alternatives("y", "z"))
    too_much = "Arguments are too large, or nested too deep, to be checked against the tool's schema."

    assert checked(tree, {"y": 1, "x": {"z": 1, "x": {"y": 1}}}).fault is None
    assert checked(tree, nested(60)).fault == too_much


@pytest.mark.parametrize(
    ("schema", "units"),
    [
        ({"properties": {"a": {}, "b": {"items": {}}}}, (1, 1, 1, 0)),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"a": {}, "b": {}}}]}, (3, 2, 0)),
        ({"additionalProperties": {}, "properties": {"a": {}}, "propertyNames": {}}, (1, 3, 0)),
        ({"properties": {"a": {"$ref": "#"}}}, (1,)),
        ({"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"items": {"$ref": "#"}}]}, (3, 4)),
        ({"allOf": [{"allOf": [{}]}], "unevaluatedProperties": False}, (7,)),
        ({"required": ["a", "b"], "enum": [{}, 1]}, (13, 0)),
    ],
)
def test_the_work_is_known_before_it_is_done(schema: Schema, units: tuple[int, ...]) -> None:
    """For one value at each level below."""
    assert effort_of(SchemaDocument(schema)).visits[: len(units)] == units


def test_a_tree_of_alternatives_doubles_at_each_level() -> None:
    """Until it counts as endless, and no further down than a value can be."""
    units = effort_of(SchemaDocument(alternatives("y", "z"))).visits

    assert units[3] == 2 * units[2] == 4 * units[1]
    assert len(units) <= DEEPEST + 1
