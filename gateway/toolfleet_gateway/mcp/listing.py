"""Lists an endpoint's tools for MCP clients, page by page, in one order."""

import bisect
from typing import Any, Final

from toolfleet_gateway.mcp.meta_tools import META_TOOLS, listed
from toolfleet_gateway.mcp.view import McpView
from toolfleet_gateway.tools import Cursor, read_cursor
from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.system.offload import aside
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.messages.following_tools import FOLLOWING_TOOLS

LIST_TTL_MS: Final = 30_000
"""How long a list may be kept by a client that does not listen for changes."""

_PAGE = 500
_MANY = 50  # tools: to write them takes some ms, which other requests should not wait


class McpListing:
    """Answers `tools/list`. It asks nothing of Redis: what exists is in memory."""

    def __init__(self, fleet: ToolFleet, settings: GatewaySettings) -> None:
        self._fleet = fleet
        self._most = settings.mcp_listed_tools

    async def own_names(self, view: McpView) -> frozenset[str]:
        """The names that stand for tools of the gateway's own here: a module's tool of the same name is the module's."""
        names = FOLLOWING_TOOLS.keys() | META_TOOLS.keys()
        if view.module is None:
            return frozenset(names)
        tools = view.of(await self._fleet.tools(view.who.caller))
        return frozenset(names - {view.shown(tool.name) for tool in tools})

    async def page(self, view: McpView, cursor: str | None, *, takes_tasks: bool) -> dict[str, Any]:
        """A page of tools. Who takes tasks is not shown the tools that ask for a call. Raises `Problem` for a wrong cursor."""
        tools = view.of(await self._fleet.tools(view.who.caller))
        taken = {view.shown(tool.name) for tool in tools} if view.module is not None else set[str]()
        following = [] if takes_tasks else [tool for name, tool in FOLLOWING_TOOLS.items() if name not in taken]
        if len(tools) > self._most:
            return _page([*META_TOOLS.values(), *following], None)
        after = read_cursor(cursor).after
        start = bisect.bisect_right(tools, after, key=lambda tool: tool.name)
        part = tools[start : start + _PAGE]
        is_last = start + _PAGE >= len(tools)
        shown = await aside(lambda: listed(view, part), is_large=len(part) > _MANY)
        return _page([*shown, *(following if is_last else ())], None if is_last else part[-1])


def _page(tools: list[Any], last: ToolDefinition | None) -> dict[str, Any]:
    page = {"tools": tools, "ttlMs": LIST_TTL_MS, "cacheScope": "private", "resultType": "complete"}
    return page if last is None else {**page, "nextCursor": Cursor(last.name).text()}
