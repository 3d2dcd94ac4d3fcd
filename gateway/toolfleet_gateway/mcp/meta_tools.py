"""Offers three tools in the place of a list that no model could read: to search, to describe and to call tools."""

from collections.abc import Mapping
from typing import Any, Final

from toolfleet_gateway.mcp.calls.followed_calls import text_result
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.formats import convert
from toolfleet_tasks.client.fleet import ToolFleet

SEARCH: Final = "search_tools"
DESCRIBE: Final = "describe_tools"
CALL: Final = "call_tool"

_MOST_FOUND = 50
_USUAL_FOUND = 10
_MOST_DESCRIBED = 20
_SHORT = 200  # characters of a description

_NAMES_SCHEMA = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": _MOST_DESCRIBED}


def _tool(name: str, description: str, properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"name": name, "description": description, "inputSchema": schema}


META_TOOLS: Final[Mapping[str, Mapping[str, Any]]] = {
    SEARCH: _tool(
        SEARCH,
        "Find tools by words of their names, descriptions and tags. There are too many to list them all.",
        {
            "query": {"type": "string", "description": "Words, the more telling the better."},
            "limit": {"type": "integer", "minimum": 1, "maximum": _MOST_FOUND, "default": _USUAL_FOUND},
        },
        ["query"],
    ),
    DESCRIBE: _tool(
        DESCRIBE,
        f"Read how tools that a search has found are called: their schemas, of {_MOST_DESCRIBED} tools at most.",
        {"names": _NAMES_SCHEMA},
        ["names"],
    ),
    CALL: _tool(
        CALL,
        "Call a tool that a search has found, with arguments as its description has them.",
        {"name": {"type": "string"}, "arguments": {"type": "object"}},
        ["name"],
    ),
}
"""What each is, as `tools/list` has it."""


def listed(view: McpView, tools: list[ToolDefinition]) -> list[dict[str, Any]]:
    """Tools as the protocol lists them, under the names that they have at this endpoint."""
    return [{**offer, "name": view.shown(tool.name)} for tool, offer in zip(tools, convert(tools, "mcp"), strict=True)]


class MetaTools:
    """Searches and describes tools for MCP clients. A call through `call_tool` is a call of the tool itself."""

    def __init__(self, fleet: ToolFleet) -> None:
        self._fleet = fleet

    async def run(self, view: McpView, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of `search_tools` or `describe_tools`."""
        return await (self._search if name == SEARCH else self._describe)(view, arguments)

    async def _search(self, view: McpView, arguments: Mapping[str, Any]) -> dict[str, Any]:
        query, limit = arguments.get("query"), arguments.get("limit", _USUAL_FOUND)
        if not isinstance(query, str) or isinstance(limit, bool) or not isinstance(limit, int):
            return text_result("query must be a text, and limit a whole number.", is_error=True)
        most = min(max(limit, 1), _MOST_FOUND)
        found = await self._fleet.search(
            query, view.who.caller, limit=most if view.module is None else _MOST_FOUND * most
        )
        shown = [
            {"name": view.shown(tool.name), "description": tool.description[:_SHORT]} for tool in view.of(found)[:most]
        ]
        text = (
            "\n".join(f"{each['name']}: {each['description']}" for each in shown) or "No tool has one of these words."
        )
        return {**text_result(text), "structuredContent": {"tools": shown}}

    async def _describe(self, view: McpView, arguments: Mapping[str, Any]) -> dict[str, Any]:
        names = arguments.get("names")
        if not isinstance(names, list) or not 0 < len(names) <= _MOST_DESCRIBED:
            return text_result(f"names must be a list of 1 to {_MOST_DESCRIBED} names of tools.", is_error=True)
        by_name = {view.shown(tool.name): tool for tool in view.of(await self._fleet.tools(view.who.caller))}
        known = [by_name[name] for name in dict.fromkeys(map(str, names)) if name in by_name]
        unknown = [name for name in dict.fromkeys(map(str, names)) if name not in by_name]
        described = listed(view, sorted(known, key=lambda tool: tool.name))
        text = "\n\n".join(f"{each['name']}: {each['description']}\n{each['inputSchema']}" for each in described)
        if unknown:
            text = f"{text}\n\nUnknown: {', '.join(name[:200] for name in unknown)}".strip()
        answer = text_result(text, is_error=not known)
        return {**answer, "structuredContent": {"tools": described, "unknown": unknown}}
