"""Knows which tools have arguments that travel as headers, too (`x-mcp-header` in their schemas): the SDK compares both."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from mcp.shared.inbound import X_MCP_HEADER_KEY, decode_header_value

from toolfleet_gateway.mcp.view import McpView
from toolfleet_tasks.client.fleet import ToolFleet

_NAME: Final = b"mcp-name"
_MOST_KNOWN = 20_000  # tools
_called: ContextVar[Mapping[str, Any] | None] = ContextVar("toolfleet_mcp_called_schema", default=None)


class HeaderArguments:
    """The known schemas of one gateway's tools."""

    def __init__(self, fleet: ToolFleet) -> None:
        self._fleet = fleet
        self._known: dict[str, tuple[Mapping[str, Any], bool]] = {}

    async def are_in(self, view: McpView, shown: str) -> bool:
        """Return whether a tool has such arguments. From memory."""
        schema = await self._schema(view, shown)
        if schema is None:
            return False
        name = view.meant(shown, []) or ""
        known = self._known.get(name)
        if known is None or known[0] is not schema:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[name] = (schema, X_MCP_HEADER_KEY in str(schema))
        return known[1]

    async def remember(self, view: McpView, headers: list[tuple[bytes, bytes]]) -> None:
        """Have the SDK find the schema of the tool that a request names, in this task: it would list all tools else."""
        name = next((value.decode("latin-1") for key, value in headers if key == _NAME), "")
        _called.set(await self._schema(view, decode_header_value(name) or ""))

    async def _schema(self, view: McpView, shown: str) -> Mapping[str, Any] | None:
        name = view.meant(shown, [])
        tool = None if name is None else await self._fleet.begun_calls.tool(name, view.who.caller)
        return None if tool is None else tool.input_schema


def called_schema(_: str) -> Mapping[str, Any] | None:
    """The schema of the tool that this task's request calls, as the SDK asks for it."""
    return _called.get()
