"""Holds the tools that exist at one moment. Never changes, so that a new one can take its place in one step."""

import difflib
from collections.abc import Iterable
from itertools import islice

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.contracts.tool_definition import by_any_name
from toolfleet_registry.manifests.overrides import SeenTool
from toolfleet_registry.permissions import Modules, Permission, denial, level_of_caller

_MOST_LISTINGS = 256  # kinds of callers; each listing holds a reference for every tool
_MOST_COMPARED = 500  # names; comparing two takes some 20 µs, and the event loop waits
_LONGEST_COMPARED = 64  # characters; the time grows with their square
_LONGEST_SUCCESSOR = 256  # characters of what a module says


class ToolSet:
    """Finds a tool by name, lists those that a caller may use, and guesses which one was meant."""

    def __init__(self, tools: Iterable[SeenTool] = ()) -> None:
        self._by_name = {tool.definition.name: tool for tool in tools}
        self._by_any_name = by_any_name(self._by_name, lambda tool: tool.definition)
        listed = sorted(name for name, tool in self._by_name.items() if tool.definition.listed)
        self._sorted = [(self._by_name[name].access, described(self._by_name[name])) for name in listed]
        self._listings: dict[tuple[Permission, Modules], tuple[ToolDefinition, ...]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def all(self) -> Iterable[SeenTool]:
        """Each tool, whoever may use it."""
        return self._by_name.values()

    def find(self, name: str) -> SeenTool | None:
        """The tool that has this name or had it, whoever may use it."""
        return self._by_any_name.get(name)

    def usable(self, permission: str, modules: Modules) -> tuple[ToolDefinition, ...]:
        """The tools that a caller with `permission` may use in `modules`, sorted by name, but for those that are not listed."""
        kind = (level_of_caller(permission), modules)
        listing = self._listings.get(kind)
        if listing is None:
            listing = tuple(tool for access, tool in self._sorted if denial(access, permission, modules) is None)
            if len(self._listings) >= _MOST_LISTINGS:
                self._listings.clear()
            self._listings[kind] = listing
        return listing

    def callable_by(self, permission: str, modules: Modules) -> list[ToolDefinition]:
        """The same with those that are not listed, in no order; made anew each time."""
        tools = self._by_name.values()
        return [tool.definition for tool in tools if denial(tool.access, permission, modules) is None]

    def near(self, name: ToolName, permission: str, modules: Modules) -> list[str]:
        """Up to three tools in `modules` with a similar name, of those that the caller may use; in one module its name says nothing."""
        if len(str(name)) > _LONGEST_COMPARED:
            return []
        names = [tool.name for tool in islice(self.usable(permission, modules), _MOST_COMPARED)]
        if modules != frozenset({name.module}):
            return difflib.get_close_matches(str(name), names)
        methods = [ToolName.parse(near).method for near in names]
        return [f"{name.module}.{method}" for method in difflib.get_close_matches(name.method, methods)]


def described(tool: SeenTool) -> ToolDefinition:
    """The tool as it is listed: a deprecated one says so first, and what to use instead."""
    definition = tool.definition
    if not definition.deprecated:
        return definition
    instead = f": use {definition.successor[:_LONGEST_SUCCESSOR]!r} instead" if definition.successor else ""
    return definition.model_copy(update={"description": f"Deprecated{instead}. {definition.description}".rstrip()})
