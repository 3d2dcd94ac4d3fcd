"""Lists what each provider takes: names, numbers, keywords. Facts about others, each with where it is from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Format = Literal["openai_chat", "openai_responses", "anthropic", "gemini", "mcp"]


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


# "'uri' is not a valid format" is what OpenAI answers to others, for the whole request.
_FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"])

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


def dialect_of(format: Format) -> Dialect:  # noqa: A002 - the word that the face uses
    """The rules of a format. Raises `ValueError` for one that does not exist."""
    try:
        return DIALECTS[format]
    except KeyError:
        raise ValueError(f"There is no format {format!r}; there are: {', '.join(DIALECTS)}.") from None
