"""The tools that exist at one moment. Never changes, so that a new one can take its place in one step."""

import difflib
from collections.abc import Iterable
from itertools import islice
from typing import Literal, TypeAlias

from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.names import ToolName
from toolfleet_registry.permissions import Permission, level_of_caller, permits, reaches

Modules: TypeAlias = frozenset[str] | Literal["*"]

_MOST_LISTINGS = 256  # kinds of callers; each listing holds a reference for every tool
_MOST_COMPARED = 500  # names; comparing two takes some 20 µs, and the event loop waits
_LONGEST_COMPARED = 64  # characters; the time grows with their square


class ToolSet:
    """Finds a tool by name, lists those that a caller may use, and guesses which one was meant."""

    def __init__(self, manifests: Iterable[ModuleManifest]) -> None:
        tools = [(tool.name, manifest.module_name, tool) for manifest in manifests for tool in manifest.tools]
        self._sorted = sorted(tools, key=lambda entry: entry[0])
        self._by_name = {name: tool for name, _, tool in tools}
        self._listings: dict[tuple[Permission, Modules], tuple[ToolDefinition, ...]] = {}

    def find(self, name: str) -> ToolDefinition | None:
        """The tool of this name, whoever may use it."""
        return self._by_name.get(name)

    def usable(self, permission: str, modules: Modules) -> tuple[ToolDefinition, ...]:
        """The tools that a caller with `permission` may use in `modules`, sorted by name."""
        kind = (level_of_caller(permission), modules)
        listing = self._listings.get(kind)
        if listing is None:
            listing = tuple(
                tool
                for _, module, tool in self._sorted
                if reaches(module, modules) and permits(permission, tool.required_permission)
            )
            if len(self._listings) >= _MOST_LISTINGS:
                self._listings.clear()
            self._listings[kind] = listing
        return listing

    def near(self, name: ToolName, permission: str) -> list[str]:
        """Up to three tools of the same module with a similar name, of those that the caller may use."""
        if len(name.method) > _LONGEST_COMPARED:
            return []
        names = (tool.name for tool in self.usable(permission, frozenset({name.module})))
        methods = [ToolName.parse(near).method for near in islice(names, _MOST_COMPARED)]
        return [f"{name.module}.{method}" for method in difflib.get_close_matches(name.method, methods)]
