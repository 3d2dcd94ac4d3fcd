"""Keeps the tools of a server by their names."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import SubscriptionBus
from mcp.shared.exceptions import MCPError

Context: TypeAlias = ServerRequestContext[Any, Any]
Answer: TypeAlias = types.CallToolResult | types.InputRequiredResult


@dataclass(frozen=True, slots=True)
class Call:
    """A call: its `arguments`, and what came with it."""

    context: Context
    params: types.CallToolRequestParams

    @property
    def arguments(self) -> Mapping[str, Any]:
        return self.params.arguments or {}


Handler: TypeAlias = Callable[[Call], Awaitable[Answer]]


@dataclass
class Tools:
    """What a server offers now. `bus` carries its changes to who listens."""

    bus: SubscriptionBus
    listed: dict[str, types.Tool] = field(default_factory=dict)
    _handlers: dict[str, Handler] = field(default_factory=dict)

    def add(
        self,
        name: str,
        handler: Handler,
        description: str,
        properties: Mapping[str, Any] | None = None,
        *,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        """Offer one."""
        known = {"type": "object", "properties": dict(properties or {})}
        self.listed[name] = types.Tool(
            name=name,
            description=description,
            input_schema=dict(schema) if schema is not None else known,
        )
        self._handlers[name] = handler

    async def list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """All, in the order of their names."""
        return types.ListToolsResult(tools=[self.listed[name] for name in sorted(self.listed)])

    async def call(self, context: Context, params: types.CallToolRequestParams) -> Answer:
        """The answer of the one that is called."""
        handler = self._handlers.get(params.name) if params.name in self.listed else None
        if handler is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}")
        return await handler(Call(context, params))

    def schema_of(self, name: str) -> Mapping[str, Any] | None:
        """The input schema of a tool, for the check of headers that repeat arguments."""
        tool = self.listed.get(name)
        return None if tool is None else tool.input_schema


def said(text: str, *, is_error: bool = False) -> types.CallToolResult:
    """An answer of one text."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)
