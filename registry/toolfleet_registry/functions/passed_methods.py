"""Passes on what else the Model Context Protocol has: prompts, resources, completions, errors, and announcements of changes.

They are not listed. Each takes a method's parameters as its arguments, and returns `{"result": …}`, or `{"error": {"code", "message", "data"}}` in the
words of its server.

A server that answers a call so has not said that its tool failed, but that the call itself was none for it. Clients of the protocol want
to know which.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

APPS: Final = "io.modelcontextprotocol/ui"
"""The extension by which a tool names a resource that clients show to people: an app."""

PASSED_METHODS: Final = (
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "completion/complete",
)
"""The protocol's names of what may be asked: nothing that has an effect."""

WATCH_METHOD: Final = "resources/subscribe"
"""Has a module's server tell of changes of a resource; its tool is there where it can."""

_BEGIN = "mcp."

_FIELD: Final = "mcp_error"
_MOST_DATA = 2**14  # bytes
_LONGEST_MESSAGE = 4000  # characters
_LARGEST_CODE = 2**31

LONGEST_URI: Final = 2_000
"""Characters of a resource's address that can be watched."""

MOST_WATCHED: Final = 1_000
"""Resources of one module, or of one client: of more, those that were asked for last are watched."""

ChangedKind = Literal["prompts", "resources", "resource"]
"""Two lists, and the content of one resource."""


def passing_method(method: str) -> str:
    """Return the name of the tool for a method of the protocol, within its module: `mcp.prompts.get`."""
    return _BEGIN + method.replace("/", ".")


def app_of(meta: Mapping[str, Any] | None) -> str | None:
    """Return the address of the app that a tool's `_meta` names, or None. The flat name is an older one."""
    said = meta or {}
    ui = said.get("ui")
    found = ui.get("resourceUri") if isinstance(ui, Mapping) else None
    found = found or said.get("ui/resourceUri")
    return found if isinstance(found, str) else None


RESERVED: Final = frozenset(map(passing_method, (*PASSED_METHODS, WATCH_METHOD)))
"""No other tool of an MCP server's module is called so."""


@dataclass(frozen=True, slots=True)
class PassedError:
    """A server's error: its code and message, and its data, if there are any."""

    code: int
    message: str
    data: Any = None

    def facts(self) -> dict[str, Any]:
        """Return the error as the protocol defines it. Data that are too large, or no JSON, are left out."""
        error: dict[str, Any] = {"code": self.code, "message": self.message[:_LONGEST_MESSAGE]}
        return {**error, "data": self.data} if _is_small(self.data) else error

    def worded(self) -> dict[str, Any]:
        """Return the error as the result of a failed call."""
        return {_FIELD: self.facts()}


def passed_error(result: object) -> PassedError | None:
    """Return the error in a failed call's result; `None` if there is none, or it is invalid."""
    found = result.get(_FIELD) if isinstance(result, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    code, message = found.get("code"), found.get("message")
    if type(code) is not int or abs(code) > _LARGEST_CODE or not isinstance(message, str):
        return None
    return PassedError(code, message, found.get("data"))


def _is_small(data: object) -> bool:
    try:
        return data is not None and len(json.dumps(data)) <= _MOST_DATA
    except (TypeError, ValueError, RecursionError):
        return False


@dataclass(frozen=True, slots=True)
class ServerChange:
    """One change. `uri` is that of a resource, else empty."""

    kind: ChangedKind
    uri: str = ""


def is_within(uri: str, watched: str) -> bool:
    """Return whether a watcher of `watched` is told of `uri`: the same address, or one below it, as the protocol defines."""
    return uri == watched or uri.startswith(watched if watched.endswith("/") else f"{watched}/")
