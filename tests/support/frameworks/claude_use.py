"""A call of Claude's, as Claude Code tells its hooks and its servers of it."""

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from mcp import Client
from mcp_types import TextContent

from toolfleet.adapters.claude import FleetSession


@dataclass
class Use:
    """A call as Claude Code says that it is deferred."""

    name: str
    input: dict[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: f"toolu_{uuid4().hex}")

    async def asked_before(self, session: FleetSession) -> dict[str, Any]:
        """What the hook says."""
        given = {"hook_event_name": "PreToolUse", "tool_name": self.name, "tool_input": self.input}
        return await session.hook({**given, "tool_use_id": self.id}, self.id, {"signal": None})

    async def made(self, session: FleetSession) -> str:
        """What Claude is shown then."""
        meta: Any = {"claudecode/toolUseId": self.id}
        async with Client(session.server["instance"]) as client:
            result = await client.call_tool(self.name.removeprefix("mcp__toolfleet__"), self.input, meta=meta)
        (block,) = result.content
        assert isinstance(block, TextContent)
        return block.text


def use_of(tool: str, arguments: dict[str, Any] | None = None) -> Use:
    return Use(f"mcp__toolfleet__{tool.replace('.', '__')}", arguments or {})
