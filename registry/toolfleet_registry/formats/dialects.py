"""Lists what each provider takes (names, numbers, keywords), with where each fact is from, and translates tool names for them."""

import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.names import ToolName, provider_name
from toolfleet_registry.contracts.tool_definition import by_any_name
from toolfleet_registry.errors import InvalidToolName

Format = Literal["openai_chat", "openai_responses", "anthropic", "gemini", "mcp"]

# "'uri' is not a valid format" is what OpenAI answers to others, for the whole request.
_FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"])

_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]", re.ASCII)
_MOST_COMPARED = 200  # names; comparing two takes some 20 µs, and the event loop waits
_LONGEST_COMPARED = 128  # characters; the time grows with their square
_ALIKE = 3  # characters
_DIGEST = 10
_READABLE = 40


@dataclass(frozen=True, slots=True)
class Strictness:
    """The keywords and limits of a provider's strict mode, which enforces schemas to the letter.

    `optional_is_null`: all properties are required, so an optional one may be null instead. The four limits hold for
    all strict tools of a request together, but `depth`, which holds for each.
    """

    keywords: frozenset[str]
    formats: frozenset[str]
    optional_is_null: bool
    is_recursive: bool
    min_items: int | None = None
    depth: int | None = None
    properties: int | None = None
    tools: int | None = None
    optionals: int | None = None
    unions: int | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One provider's rules. `description`: characters of a tool's; `tools`: how many in one request.

    `formats`: what it takes as a string's `format`; `None` for anything.
    """

    formats: frozenset[str] | None = None
    property_name: re.Pattern[str] | None = None
    dotted_name: re.Pattern[str] | None = None
    description: int | None = None
    tools: int | None = None
    strictness: Strictness | None = None


# The structured outputs guide's list. String lengths are in no version of it for certain: left out, and checked here.
_OPENAI_STRICT = Strictness(
    keywords=frozenset(
        [
            "pattern",
            "multipleOf",
            "maximum",
            "exclusiveMaximum",
            "minimum",
            "exclusiveMinimum",
            "minItems",
            "maxItems",
            "title",
        ]
    ),
    formats=_FORMATS,
    optional_is_null=True,
    is_recursive=True,
    depth=10,
    properties=5000,
)
# What anthropic's own `transform_schema` keeps; the limits are those that its API names when it refuses a request.
_ANTHROPIC_STRICT = Strictness(
    keywords=frozenset({"default", "title", "minItems"}),
    formats=_FORMATS | {"uri"},
    optional_is_null=False,
    is_recursive=False,
    min_items=1,
    tools=20,
    optionals=24,
    unions=16,
)

DIALECTS: Mapping[Format, Dialect] = {
    # 1024 was OpenAI's limit for years, and is that of servers that speak its older format.
    "openai_chat": Dialect(formats=_FORMATS, description=1024, tools=128, strictness=_OPENAI_STRICT),
    "openai_responses": Dialect(formats=_FORMATS, tools=128, strictness=_OPENAI_STRICT),
    # "Property keys should match pattern ..." is what its API answers to others.
    "anthropic": Dialect(property_name=re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII), strictness=_ANTHROPIC_STRICT),
    # Both patterns stand in google-genai's `FunctionDeclaration`; 64 is the older and narrower limit for a name.
    "gemini": Dialect(
        property_name=re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII),
        dotted_name=re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII),
        tools=128,
    ),
    # The protocol's rule for names since 2025-11-25, as in mcp's `tool_name_validation`.
    "mcp": Dialect(dotted_name=re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)),
}


def dialect_of(format: Format) -> Dialect:
    """Return the rules of a format. Raises `ValueError` for one that does not exist."""
    try:
        return DIALECTS[format]
    except KeyError:
        raise ValueError(f"There is no format {format!r}; there are: {', '.join(DIALECTS)}.") from None


def offered_name(name: str, format: Format, *, dotted: bool = False) -> str:
    """Return a name that the provider accepts; no two tools share one.

    With `dotted`, and where the provider takes dots, it is our own name if that is legal there; otherwise the one that
    `names.provider_name` makes, which never has a dot.
    """
    legal = dialect_of(format).dotted_name if dotted else None
    return name if legal is not None and "." in name and legal.fullmatch(name) else provider_name(name)


def answered_name(name: str, format: Format, *, dotted: bool = False) -> str:
    """Return the name that a result goes back under: as offered; of a tool that does not exist, as the model spoke it."""
    try:
        ToolName.parse(name)
    except InvalidToolName:
        return name if _LEGAL.fullmatch(name) else provider_name(name)
    return offered_name(name, format, dotted=dotted)


def meant_tool(spoken: str, tools: Iterable[ToolDefinition]) -> ToolDefinition | None:
    """Return the tool that was offered under this name, or a former one, dotted or not; `None` if none was, or two were.

    Two were offered under one name if the digests at the ends of theirs are the same.
    """
    by_name = by_any_name({tool.name: tool for tool in tools}, lambda tool: tool)
    if spoken in by_name:
        return by_name[spoken]
    dotted = spoken.replace("__", ".")
    if dotted in by_name and provider_name(dotted) == spoken:  # without a digest it is no other's
        return by_name[dotted]
    found = {tool.name: tool for name, tool in by_name.items() if provider_name(name) == spoken}
    return next(iter(found.values())) if len(found) == 1 else None


def near_names(
    spoken: str,
    tools: Iterable[ToolDefinition],
    format: Format,
    *,
    dotted: bool = False,
) -> tuple[str, ...]:
    """Return up to three offered names that are most similar to one that was not offered."""
    if len(spoken) > _LONGEST_COMPARED:
        return ()
    meant, start = _plain(spoken), spoken[:_ALIKE]
    # Those that begin alike are compared first.
    compared = sorted(tools, key=lambda tool: not tool.name.startswith(start))[:_MOST_COMPARED]
    whole = {_plain(tool.name): tool for tool in compared}
    methods = {_plain(tool.name.partition(".")[2]): tool for tool in compared}  # the module is easily forgotten
    found = [meant] if meant in whole else difflib.get_close_matches(meant, whole)
    near = [whole[each] for each in found] or [methods[each] for each in difflib.get_close_matches(meant, methods)]
    return tuple(offered_name(tool.name, format, dotted=dotted) for tool in near)


def _plain(name: str) -> str:
    """Return the name without what models mix up."""
    return name.replace("__", "_").replace(".", "_").lower()


def legal_property(name: str, legal: re.Pattern[str]) -> str:
    """Return a property's name as a provider takes it: itself if it may be, else its readable start and a digest."""
    if legal.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"p_{_ILLEGAL.sub('_', name)[:_READABLE]}_x{digest}"
