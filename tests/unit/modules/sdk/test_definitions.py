"""What a function becomes as a tool, and what no function may be."""

import functools
import json
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from toolfleet.formats import Format, convert
from toolfleet.sdk import Context, Module
from toolfleet_registry.admission_rules import admit, closed_tools, unknown_fields
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.tool_definition import Approvers, approvers_of
from toolfleet_registry.policy.redaction import sensitive_paths
from toolfleet_registry.schemas.definition import input_schema

FORMATS: tuple[Format, ...] = ("openai_chat", "openai_responses", "anthropic", "gemini", "mcp")


COUNTED = "They are counted in the evening and in the morning."


class Kind(Enum):
    BARN = "barn"
    SNOWY = "snowy"


class Place(BaseModel):
    """Where."""

    latitude: float = Field(ge=-90, le=90)
    longitude: float


@dataclass
class Span:
    first: int
    last: int


class Seen(TypedDict):
    owls: int


def tool_of(function: Any, **facts: Any) -> ToolDefinition:
    module = Module("owls")
    module.add(function, **facts)
    (tool,) = module.manifest.tools
    return tool


async def count(  # noqa: D417 - as docstrings are
    day: Annotated[int, Field(ge=1, le=31)],
    place: Place,
    kinds: list[Kind],
    how: Literal["seen", "heard"],
    span: Span | None,
    context: Context,
    user_id: str | None,
    tags: list[str] | None = None,
) -> Seen:
    """How many owls were seen on a day.

    They are counted in the evening
    and in the morning.

    Owls that fly away:
    - count once

    Args:
        day: The day of the month.
        place (Place): Where they were seen, in degrees
            of the usual kind: north and east.
        user_id: Never shown to a model.

    Returns:
        Nothing that a model reads.

    """
    raise NotImplementedError


def test_a_signature_and_a_docstring_make_a_definition() -> None:
    """Types become a JSON Schema, the docstring's text the description, `Args:` that of the parameters."""
    tool = tool_of(count, permission="admin", effect="read", timeout_seconds=5, tags=("birds",), cooldown_seconds=2)

    assert tool.name == "owls.count"
    assert tool.description == f"How many owls were seen on a day.\n\n{COUNTED}\n\nOwls that fly away:\n- count once"
    assert (tool.required_permission, tool.effect, tool.timeout_seconds) == ("admin", "read", 5)
    assert (tool.tags, tool.cooldown_seconds) == (["birds"], 2)
    schema = input_schema(tool)
    assert list(schema["properties"]) == ["day", "place", "kinds", "how", "span", "tags"]
    assert schema["required"] == ["day", "place", "kinds", "how", "span"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["day"] == {
        "description": "The day of the month.",
        "maximum": 31,
        "minimum": 1,
        "type": "integer",
    }
    assert schema["properties"]["place"]["description"].endswith("in degrees of the usual kind: north and east.")
    assert schema["properties"]["how"]["enum"] == ["seen", "heard"]
    assert schema["$defs"]["Kind"] == {"enum": ["barn", "snowy"], "type": "string"}
    assert tool.output_schema is not None
    assert tool.output_schema["properties"] == {"owls": {"type": "integer"}}


def test_the_flat_parameters_say_the_same_to_those_who_read_no_schemas() -> None:
    """Names, plain types, and what is required."""
    flat = {each.name: (each.type, each.required) for each in tool_of(count).parameters}

    assert flat == {
        "day": ("integer", True),
        "place": ("object", True),
        "kinds": ("array", True),
        "how": ("string", True),
        "span": ("object", True),
        "tags": ("array", False),
    }


@pytest.mark.parametrize("format", FORMATS)
def test_every_provider_takes_it_as_it_is(format: Format) -> None:
    """No note on any change, for five formats."""
    assert convert([tool_of(count), tool_of(lambda: None, name="nothing")], format).notes == ()


def test_the_fleet_admits_the_manifest() -> None:
    """With no tool closed, and no field ignored."""
    module = Module("owls", description="Counts owls.", version="1.2.0")
    module.add(
        count, permission="admin", requires_gate=True, cost="cheap", daily_limit=3, deprecated=True, successor="x.y",
        concurrency_key="day", concurrency_limit=2, concurrency_per_user=True,
    )  # fmt: skip
    document = module.manifest.model_dump(mode="json", exclude_none=True)

    manifest = admit("owls", document)
    assert closed_tools(manifest) == ()
    assert unknown_fields(document) == []
    (tool,) = manifest.tools
    assert (tool.version, tool.requires_gate, tool.cost, tool.daily_limit) == ("1.2.0", True, "cheap", 3)
    assert (tool.deprecated, tool.successor) == (True, "x.y")
    assert (tool.concurrency_key, tool.concurrency_limit, tool.concurrency_per_user) == ("day", 2, True)


@pytest.mark.parametrize(
    ("facts", "asked"),
    [
        ({}, ()),
        ({"approval": False}, ()),
        ({"approval": True}, (Approvers(permission="admin"),)),
        ({"approvers": ["carol"]}, (Approvers(users=frozenset({"carol"})),)),
        ({"approval": True, "approvers": ("carol",)}, (Approvers(users=frozenset({"carol"})),)),
        (
            {"approvers": {"permission": "owner", "keys": ["k1"]}},
            (Approvers(permission="owner", keys=frozenset({"k1"})),),
        ),
    ],
)
def test_a_tool_may_ask_for_an_approval(facts: Any, asked: tuple[Approvers, ...]) -> None:
    """Of admins, or of the approvers that it names; the fleet admits it, and a tool that asks for none says nothing of it."""
    module = Module("owls")
    module.add(count, **facts)
    document = json.loads(module.manifest.model_dump_json(exclude_none=True))

    (tool,) = admit("owls", document).tools
    assert approvers_of(tool.approval) == asked
    assert ("approval" in document["tools"][0]) == (facts != {})


@pytest.mark.parametrize(
    "facts",
    [
        {"approvers": "carol"},
        {"approval": False, "approvers": ["carol"]},
        {"approvers": {"user": ["carol"]}},
        {"approvers": {"permission": "admins"}},
    ],
)
def test_approvers_that_cannot_be_meant_are_refused(facts: Any) -> None:
    """Where the tool is defined: an approval that nobody asks for would not be missed."""
    with pytest.raises((TypeError, ValueError), match="approv"):
        Module("owls").add(count, **facts)


def test_a_sensitive_argument_is_one_for_the_fleet() -> None:
    """It is kept nowhere."""

    def unlock(door: str, pin: str) -> None: ...

    assert sensitive_paths(tool_of(unlock, sensitive=("pin",))) == ("/pin",)


def test_any_names_are_good_for_parameters() -> None:
    """Also those that mean something to pydantic, or to JSON Schema."""

    async def odd(schema: int, model_config: int, copy: int, title: int, self: int, p0: int = 3) -> None: ...

    assert set(input_schema(tool_of(odd))["properties"]) == {"schema", "model_config", "copy", "title", "self", "p0"}


def test_methods_partials_and_callable_objects_are_tools_too() -> None:
    """A module may hold objects with state."""

    class Owls:
        async def count(self, day: int) -> int:
            """Count."""
            return day

        async def __call__(self, night: int) -> int:
            """Call."""
            return night

    module = Module("owls")
    module.add(Owls().count)
    module.add(Owls(), name="call")
    module.add(functools.partial(Owls().count, day=3), name="third")
    tools = {tool.name: tool for tool in module.manifest.tools}

    assert [tools[f"owls.{name}"].description for name in ("count", "call")] == ["Count.", "Call."]
    assert set(input_schema(tools["owls.call"])["properties"]) == {"night"}
    assert tools["owls.third"].parameters[0].required is False


def unannotated(day) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    ...


def collects(*days: int) -> None: ...


def gathers(**days: int) -> None: ...


def positional(day: int, /) -> None: ...


def opaque(day: Module) -> None: ...


def broken(day: "Unheard") -> None:  # type: ignore[name-defined] # noqa: F821
    ...


def wrong_default(day: int = None) -> None:  # type: ignore[assignment] # noqa: RUF013
    ...


def field_default(day: int = Field(ge=1)) -> None: ...


def two_contexts(one: Context, two: Context) -> None: ...


def other_docs(day: int) -> None:  # noqa: D417 - that is the mistake
    """Count.

    Args:
        night: Of the month.

    """


async def yields(day: int) -> Any:
    yield day


def callback(done: Annotated[Any, "x"] = print) -> None: ...


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (unannotated, r"'day' of unannotated\(\) has no annotation"),
        (collects, r"collects\(\) takes '\*days'"),
        (gathers, r"gathers\(\) takes '\*\*days'"),
        (positional, r"positional\(\) takes 'day'"),
        (opaque, r"opaque\(\) have no JSON Schema"),
        (broken, r"annotations of broken\(\) cannot be read: name 'Unheard'"),
        (wrong_default, r"default of 'day' of wrong_default\(\) is not what its annotation allows"),
        (field_default, r"'day' of field_default\(\) has a Field as its default; write Annotated"),
        (two_contexts, r"has two contexts, 'one' and 'two'"),
        (other_docs, r"has no parameter 'night', which its docstring describes"),
        (yields, r"owls\.yields yields"),
        (callback, r"callback\(\) cannot be written as JSON"),
        ("count", r"'count' is no function"),
    ],
)
def test_a_mistake_is_one_clear_error_when_the_tool_is_defined(function: Any, told: str) -> None:
    """A module that starts has no such mistake."""
    with pytest.raises((TypeError, ValueError), match=told) as caught:
        Module("owls").add(function)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "facts",
    [
        {"name": "two words"},
        {"name": "a.b"},
        {"name": "x" * 65},
        {"permission": "root"},
        {"effect": "twice"},
        {"timeout_seconds": 0},
        {"cost": "dear"},
        {"daily_limit": -1},
        {"concurrency_key": "week"},
        {"concurrency_key": "day[0]"},
        {"concurrency_key": "day", "concurrency_limit": 0},
        {"concurrency_limit": 2},
        {"sensitive": ("pin",)},
        {"sensitive": "day"},
        {"colour": "red"},
    ],
    ids=str,
)
def test_facts_that_cannot_be_meant_are_refused(facts: dict[str, Any]) -> None:
    """In one sentence that names the tool or the name."""
    with pytest.raises((TypeError, ValueError), match=r"owls\.count|is no name"):
        Module("owls").add(count, **facts)


@pytest.mark.parametrize("name", ["", "two words", "a.b", "-x", "x" * 65])
def test_a_module_needs_a_name_that_a_queue_can_have(name: str) -> None:
    """It becomes part of a queue's name."""
    with pytest.raises(ValueError, match="is no name for a module"):
        Module(name)


def test_two_tools_of_one_name_are_refused() -> None:
    """The second would hide the first; and an app offers what it had when it was made."""
    module = Module("owls")
    module.add(count)
    with pytest.raises(ValueError, match=r"two tools named 'owls\.count'"):
        module.add(count)
    assert module.app
    with pytest.raises(ValueError, match="add tools before"):
        module.add(count, name="other")


def test_a_tool_asks_for_a_user_unless_it_says_otherwise() -> None:
    """What its author has not thought about is not open to everybody."""
    assert tool_of(count).required_permission == "user"
    assert tool_of(count, permission="guest").required_permission == "guest"
