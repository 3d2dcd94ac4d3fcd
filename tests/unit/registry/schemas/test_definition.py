"""A tool's arguments as JSON Schema."""

from collections.abc import Iterator

import pytest

from support.programs.counted_calls import counted
from toolfleet_registry.contracts import ToolDefinition, ToolParameter
from toolfleet_registry.schemas.definition import input_schema, unknown_types

SEARCH = ToolDefinition(
    name="research.search",
    parameters=[
        ToolParameter(name="query", type="string", description="What to look for"),
        ToolParameter(name="order", type="string", description="By what", required=False, enum=["date", "rank"]),
        ToolParameter(name="tags", type="array", required=False),
    ],
)


def test_flat_parameters_become_a_schema() -> None:
    """In the manifest's order; an array says that anything may be in it."""
    assert input_schema(SEARCH) == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for"},
            "order": {"type": "string", "description": "By what", "enum": ["date", "rank"]},
            "tags": {"type": "array", "description": "", "items": {}},
        },
        "required": ["query"],
    }
    assert input_schema(ToolDefinition(name="a.b")) == {"type": "object", "properties": {}, "required": []}


def test_a_parameter_that_is_listed_twice_counts_once() -> None:
    """`required` may name nothing twice; the last description counts."""
    twice = [ToolParameter(name="a", type="string"), ToolParameter(name="a", type="integer")]
    schema = input_schema(ToolDefinition(name="a.b", parameters=twice))
    assert schema["required"] == ["a"]
    assert schema["properties"]["a"]["type"] == "integer"


def test_a_modules_own_schema_replaces_the_parameters() -> None:
    """It is given as it is, but for what providers insist on."""
    own = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "null"}}}
    assert input_schema(SEARCH.model_copy(update={"input_schema": own})) == own
    assert input_schema(SEARCH.model_copy(update={"input_schema": {}})) == {"type": "object", "properties": {}}


def test_a_schema_is_the_callers_own() -> None:
    """What is done to it does not reach the definition."""
    tool = ToolDefinition(
        name="a.b", input_schema={"properties": {"a": {}}}, parameters=[ToolParameter(name="a", type="s", enum=[[1]])]
    )
    input_schema(tool)["properties"]["a"]["type"] = "string"
    assert tool.input_schema == {"properties": {"a": {}}}
    flat = tool.model_copy(update={"input_schema": None})
    input_schema(flat)["properties"]["a"]["enum"][0].append(2)
    assert flat.parameters[0].enum == [[1]]


@pytest.mark.parametrize(
    ("written", "types"),
    [
        ("str", "string"),
        ("Int", "integer"),
        (" float ", "number"),
        ("bool", "boolean"),
        ("list[str]", "array"),
        ("string[]", "array"),
        ("Array<string>", "array"),
        ("Dict[str, list[int]]", "object"),
        ("Optional[int]", ["integer", "null"]),
        ("str | None", ["string", "null"]),
        ("integer|number", ["integer", "number"]),
    ],
)
def test_types_have_the_names_that_people_use(written: str, types: str | list[str]) -> None:
    """They become those of JSON Schema; of what a list is made is left to the module."""
    tool = ToolDefinition(name="a.b", parameters=[ToolParameter(name="x", type=written)])

    assert input_schema(tool)["properties"]["x"]["type"] == types
    assert unknown_types([tool], most=9) == []


@pytest.mark.parametrize(
    ("written", "is_known"), [("any", True), ("geo:point", False), ("str | owl", False), ("[" * 9999, False)]
)
def test_a_type_that_means_nothing_to_us_constrains_nothing(written: str, *, is_known: bool) -> None:
    """The tool can be used, and the type can be told about, shortened."""
    tool = ToolDefinition(name="a.b", parameters=[ToolParameter(name="x", type=written)])

    assert "type" not in input_schema(tool)["properties"]["x"]
    assert (unknown_types([tool], most=9) == []) == is_known
    assert len(str(unknown_types([tool], most=9))) < 200


def test_types_that_mean_nothing_are_listed_once_and_only_so_many() -> None:
    """A manifest may have very many: what is beyond is not even looked at."""
    tools = [
        ToolDefinition(name=f"a.b{n}", parameters=[ToolParameter(name="x", type=f"geo:point{n // 2}")])
        for n in range(1_000)
    ]
    looked_at = list[str]()

    def looking() -> Iterator[ToolDefinition]:
        for tool in tools:
            looked_at.append(tool.name)
            yield tool

    assert unknown_types(looking(), most=3) == ["x: geo:point0", "x: geo:point1", "x: geo:point2"]
    assert len(looked_at) == 5


def test_brackets_in_each_other_hold_nobody_up() -> None:
    """Of a type, however long and deep it is: each is read by a bounded number of calls."""
    types = [f"list[{'a[' * 60}x{n}{']' * 60}]" for n in range(20_000)]
    tool = ToolDefinition(name="a.b", parameters=[ToolParameter(name="x", type=each) for each in types])
    found, calls = counted(lambda: unknown_types([tool], most=20))

    assert len(found) == 1  # which, shortened, are all the same
    assert calls < 100 * len(types)
