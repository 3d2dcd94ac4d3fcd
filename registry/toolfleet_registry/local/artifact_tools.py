"""Defines the module `artifacts`: the tools with which a model reads the large results of its user's calls."""

from typing import Any, Final

from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.contracts.names import ARTIFACTS
from toolfleet_registry.settings import Settings

MOST_CHARACTERS: Final = 16_000
"""The most characters of one answer of `artifacts.read`."""

MOST_LINES: Final = 1_000
MOST_MATCHES: Final = 50
MOST_LISTED: Final = 100

USUAL_CHARACTERS, USUAL_FOUND = 4_000, 20
"""How much an answer has by default: characters; matches or artifacts."""

_READ = """
    Read a part of an artifact: a large result of an earlier call, of which you were shown a preview. Give `offset`, in
    characters, or `first_line`, or the `pointer` to a value of JSON, which may be combined with `offset`. The answer's `next_offset` is where to go on.
"""
_SEARCH = (
    "Find a pattern in an artifact. Returns for each match its line, its offset for `read`, and the text around it."
)
_LIST = (
    "List the artifacts of this user that are kept, those first that are kept longest: large results of earlier calls."
)
_ID: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 240,
    "description": "The artifact, as its preview names it.",
}


def probe_artifacts(settings: Settings) -> dict[str, ModuleManifest]:
    """Return the manifest of `artifacts`, in addition to the results of `discover`; empty without a store."""
    if settings.artifact_store is None:
        return {}
    tools = [
        _tool("read", _READ, _read_schema(), ["id"]),
        _tool("search", _SEARCH, _search_schema(), ["id", "pattern"]),
        _tool("list", _LIST, {"limit": _number(1, MOST_LISTED, f"How many at most; {USUAL_FOUND} if left out.")}, []),
    ]
    return {ARTIFACTS: ModuleManifest(module_name=ARTIFACTS, description="Large results of calls.", tools=tools)}


def _tool(method: str, description: str, properties: dict[str, Any], required: list[str]) -> ToolDefinition:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolDefinition(
        name=f"{ARTIFACTS}.{method}",
        description=" ".join(description.split()),
        required_permission="guest",
        input_schema=schema,
        effect="read",
        tags=["artifacts"],
    )


def _number(least: int, most: int | None, description: str) -> dict[str, Any]:
    bound = {} if most is None else {"maximum": most}
    return {"type": "integer", "minimum": least, **bound, "description": description}


def _read_schema() -> dict[str, Any]:
    return {
        "id": _ID,
        "offset": _number(0, None, "The first character; 0 if left out."),
        "limit": _number(1, MOST_CHARACTERS, f"How many characters at most; {USUAL_CHARACTERS} if left out."),
        "first_line": _number(1, None, "The first line, from 1, in place of `offset`."),
        "lines": _number(1, MOST_LINES, "How many lines from there; as many as `limit` has room for if left out."),
        "pointer": {"type": "string", "maxLength": 1_000, "description": "A JSON pointer, such as /rows/0/name."},
    }


def _search_schema() -> dict[str, Any]:
    return {
        "id": _ID,
        "pattern": {
            "type": "string",
            "minLength": 1,
            "maxLength": 500,
            "description": "A regular expression of RE2; (?i) at its beginning ignores case.",
        },
        "limit": _number(1, MOST_MATCHES, f"How many matches at most; {USUAL_FOUND} if left out."),
    }
