"""Names the tools through which a module passes on the Model Context Protocol's prompts, resources and completion.

They are not listed. Each takes a method's parameters as its arguments, and returns `{"result": …}`, or `{"error": {"code", "message", "data"}}` in the
words of its server.
"""

from collections.abc import Mapping
from typing import Any, Final

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
