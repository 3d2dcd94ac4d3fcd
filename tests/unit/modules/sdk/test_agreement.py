"""The schema that a model sees, and the function that its arguments reach, mean the same."""

import inspect
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from support.schemas.json_schemas import is_valid
from toolfleet.formats import Format, convert
from toolfleet.sdk import Module
from toolfleet_modules.calls.reply import Reply
from toolfleet_registry.admission_rules import admit, closed_tools
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.schemas.validation import checked

FORMATS: tuple[Format, ...] = ("openai_chat", "openai_responses", "anthropic", "gemini", "mcp")


class Kind(Enum):
    BARN = "barn"
    SNOWY = "snowy"


class Nest(BaseModel):
    eggs: Annotated[int, Field(ge=0)]
    kinds: list[Kind] = []
    title: str | None = None


@dataclass(frozen=True)
class Parameter:
    """An annotation, JSON values that it means, and a default of it."""

    annotation: Any
    values: st.SearchStrategy[Any]
    default: Any


_KINDS = st.sampled_from(["barn", "snowy"])
_PLAIN = [
    Parameter(int, st.integers(-(2**60), 2**60), 7),
    Parameter(Annotated[int, Field(ge=1, le=31)], st.integers(1, 31), 7),
    Parameter(float, st.floats(allow_nan=False, allow_infinity=False) | st.integers(-1000, 1000), 0.5),
    Parameter(bool, st.booleans(), True),
    Parameter(str, st.text(max_size=5), "x"),
    Parameter(Annotated[str, Field(min_length=1, max_length=3)], st.text(min_size=1, max_size=3), "x"),
    Parameter(Literal["seen", "heard", 3], st.sampled_from(["seen", "heard", 3]), "seen"),
    Parameter(Kind, _KINDS, Kind.BARN),
    Parameter(
        Nest,
        st.fixed_dictionaries(
            {"eggs": st.integers(0, 9)},
            optional={"kinds": st.lists(_KINDS, max_size=2), "title": st.none() | st.just("t")},
        ),
        Nest(eggs=1),
    ),
    Parameter(Any, st.none() | st.integers() | st.lists(st.booleans(), max_size=2), None),
]
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-100, 100)
    | st.floats(-9, 9)
    | st.sampled_from(["", "x", "barn", "seen", "7"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["eggs", "kinds", "title", "a"]), inner, max_size=3)
    ),
    max_leaves=4,
)


@st.composite
def parameters(draw: st.DrawFn) -> Parameter:
    """One of the plain ones, or a list, a map or an option of one."""
    plain = draw(st.sampled_from(_PLAIN))
    match draw(st.sampled_from(["plain", "list", "map", "option"])):
        case "list":
            return Parameter(list[plain.annotation], st.lists(plain.values, max_size=3), [plain.default])  # type: ignore[name-defined] # made here
        case "map":
            values = st.dictionaries(st.text(max_size=2), plain.values, max_size=2)
            return Parameter(dict[str, plain.annotation], values, {})  # type: ignore[name-defined] # as above
        case "option":
            return Parameter(plain.annotation | None, st.none() | plain.values, None)
        case _:
            return plain


@st.composite
def signatures(draw: st.DrawFn) -> tuple[Module, dict[str, Parameter], dict[str, bool]]:
    """A module with one tool of a made-up signature, its parameters, and which of them have a default."""
    names = st.sampled_from(["day", "schema", "json", "self", "title", "type", "copy", "p0", "model_fields", "Eule"])
    made = draw(st.dictionaries(names, parameters(), max_size=4))
    has_default = {name: draw(st.booleans()) for name in made}

    async def tool(**given: Any) -> dict[str, Any]:
        return given

    kind = inspect.Parameter.KEYWORD_ONLY
    tool.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # as a decorator does it
        [
            inspect.Parameter(name, kind, default=it.default if has_default[name] else inspect.Parameter.empty)
            for name, it in made.items()
        ]
    )
    tool.__annotations__ = {name: it.annotation for name, it in made.items()}
    module = Module("owls")
    module.add(tool)
    return module, made, has_default


@given(st.data(), signatures())
def test_what_a_signature_means_is_allowed_everywhere(
    data: st.DataObject, made: tuple[Module, dict[str, Parameter], dict[str, bool]]
) -> None:
    """The fleet admits the tool and lets such arguments through, and the module takes them; what it says is required is."""
    module, parameters, has_default = made
    (tool,) = admit("owls", module.manifest.model_dump(mode="json", exclude_none=True)).tools
    assert closed_tools(module.manifest) == ()
    given = {
        name: data.draw(it.values)
        for name, it in parameters.items()
        if not has_default[name] or data.draw(st.booleans())
    }

    let_through = checked(tool, given)
    assert let_through.fault is None
    assert let_through.arguments is not None  # with defaults, as they stand in the schema
    assert not isinstance(module.tools["owls.tool"].read(let_through.arguments, None), Reply)
    own = module.tools["owls.tool"].read(given, None)
    assert not isinstance(own, Reply), own
    assert own.keys() == given.keys()
    for name in (name for name, defaulted in has_default.items() if not defaulted):
        less = {key: value for key, value in given.items() if key != name}
        assert checked(tool, less).fault is not None
        assert isinstance(module.tools["owls.tool"].read(less, None), Reply)


@given(signatures(), st.dictionaries(st.sampled_from(["day", "schema", "json", "self", "extra"]), _JSON, max_size=4))
def test_what_the_schema_allows_the_function_takes(
    made: tuple[Module, dict[str, Parameter], dict[str, bool]], arguments: dict[str, Any]
) -> None:
    """No call that a model was told is right fails for its arguments; and an argument that is not there never passes."""
    module, parameters, _ = made
    (tool,) = module.manifest.tools
    read = module.tools["owls.tool"].read(arguments, None)

    if is_valid(arguments, input_schema(tool)):
        assert not isinstance(read, Reply), read
    if arguments.keys() - parameters.keys():
        assert isinstance(read, Reply)


@given(signatures())
def test_every_provider_takes_every_signature(made: tuple[Module, dict[str, Parameter], dict[str, bool]]) -> None:
    """None is refused; four take all of them as they are."""
    module, _, _ = made
    for format in FORMATS:
        notes = convert(module.manifest.tools, format).notes
        assert all(note.kind != "refused" for note in notes)
        assert not notes or format == "gemini", notes
