"""Lists the tools that are in effect, regardless of who may use them: viewers see all."""

from dataclasses import dataclass
from typing import Final

from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.contracts.tool_definition import tool_named
from toolfleet_tasks.client.fleet import ToolFleet

_EVERYBODY: Final = Caller(permission="owner", allowed_modules="*")
_MOST_FOUND = 1_000


@dataclass(frozen=True, slots=True)
class KnownTools:
    """The tools of the fleet. From memory: costs no round trip."""

    fleet: ToolFleet

    async def of_module(self, module: str) -> list[ToolDefinition]:
        """A module's, by name."""
        return [tool for tool in await self.all() if tool.name.partition(".")[0] == module]

    async def all(self) -> list[ToolDefinition]:
        """All of them, by name."""
        return await self.fleet.tools(_EVERYBODY)

    async def find(self, words: str) -> list[ToolDefinition]:
        """Return the tools with one of these words, the best first; all without a word."""
        return await self.fleet.search(words, _EVERYBODY, limit=_MOST_FOUND) if words else await self.all()

    async def one(self, name: str) -> ToolDefinition | None:
        """The tool of that name, if it is in effect."""
        return tool_named(name, await self.all())
