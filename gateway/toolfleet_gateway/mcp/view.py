"""Defines what a client sees of the fleet at one endpoint: all tools, or those of one module under their bare names."""

from dataclasses import dataclass
from typing import Final

from toolfleet_gateway.auth.identity import Identity
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.formats.dialects import meant_tool, offered_name
from toolfleet_registry.functions.passed_methods import app_of

VIEW: Final = "toolfleet.mcp_view"
"""The key of the view in a request's scope."""
BEGAN: Final = "toolfleet.mcp_began"
"""The key, in the scope of an older client's request, of the function that takes the id of the request's call."""

LOG_LEVEL: Final = "toolfleet.mcp_log_level"
"""The key, in that scope, of the session's log level."""
KEEP_LOG_LEVEL: Final = "toolfleet.mcp_keep_log_level"
"""The key, in that scope, of the function that takes another log level."""
ASK: Final = "toolfleet.mcp_ask"
"""The key, in that scope, of the function that asks the client on the request's stream, given the request's id and the question."""
IS_CANCELLED: Final = "toolfleet.mcp_is_cancelled"
"""The key, in that scope, of a function that says whether the client has cancelled it."""
END: Final = "toolfleet.mcp_end"
"""The key, in that scope, of a function that ends its stream without an answer."""
SESSION: Final = "toolfleet.mcp_session"
"""The key of an older client's session in a request's scope."""


@dataclass(frozen=True, slots=True)
class McpView:
    """The view of `who` at `/mcp`, or at `/mcp/{module}`."""

    who: Identity
    module: str | None = None

    def of(self, tools: list[ToolDefinition]) -> list[ToolDefinition]:
        """Return the caller's tools that are visible here, in their order."""
        if self.module is None:
            return tools
        start = f"{self.module}."
        return [tool for tool in tools if tool.name.startswith(start)]

    def shown(self, tool_name: str) -> str:
        """Return a tool's name here. The protocol allows dots."""
        if self.module is not None:
            return tool_name.removeprefix(f"{self.module}.")
        return offered_name(tool_name, "mcp", dotted=True)

    def meant(self, shown: str, tools: list[ToolDefinition]) -> str | None:
        """Return the tool that a client calls so; `None` for a name that no tool seen here can have, or two have."""
        if self.module is not None:
            return f"{self.module}.{shown}" if shown else None
        if "." in shown:
            return shown
        if (found := meant_tool(shown, tools)) is not None:
            return found.name
        # an app knows the tools of its server by that server's names
        modules = apps_in(tools)
        named = (tool.name.partition(".") for tool in tools)
        own = [f"{module}.{method}" for module, _, method in named if method == shown and module in modules]
        return own[0] if len(own) == 1 else None


def apps_in(tools: list[ToolDefinition]) -> dict[str, set[str]]:
    """Return the addresses of the apps that tools name, by module."""
    found = dict[str, set[str]]()
    for tool in tools:
        if (address := app_of(tool.meta)) is not None:
            found.setdefault(tool.name.partition(".")[0], set()).add(address)
    return found
