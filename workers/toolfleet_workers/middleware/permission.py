"""The third look at a caller's rights, after the listing and the agent's own: with what this worker knows itself."""

from dataclasses import dataclass, field
from typing import Protocol

import structlog

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.decisions import note
from toolfleet_registry.hints import FOR_NOBODY
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_registry.permissions import denial, module_denial, reaches
from toolfleet_registry.verdicts import SeenTool
from toolfleet_workers.runner import Proceed

log = structlog.get_logger(__name__)

_MOST_NAMED = 1000  # tools that nobody knows, each logged once; then their number must do


class Tools(Protocol):
    """Knows the modules' tools, and what operators have decided about them."""

    @property
    def is_old(self) -> bool:
        """Whether that should be learnt anew before anything is decided on it."""
        ...

    def find(self, tool_name: str) -> SeenTool | None:
        """The tool as it is in effect; `None` if nothing is known of it."""
        ...

    async def refresh(self, *, reads_all: bool = True) -> None:
        """Learn what has changed, or all of it anew; returns soon, also if that does not work."""
        ...


@dataclass
class PermissionCheck:
    """Runs a call only if its caller may use the tool, by the same rule as when it was listed and published.

    `default_modules` are those of a caller who does not say.

    A tool that nothing is known of fails open, for its agent has looked as well: `unknown` counts such calls, and the
    log names each tool once. Before it refuses, it has the manifests read again: they may have changed.
    """

    tools: Tools
    default_modules: frozenset[str]
    unknown: int = field(default=0, init=False)
    _named: set[str] = field(default_factory=set[str], init=False)

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed, or refuse with `permission_denied`."""
        caller = call.caller
        modules = self.default_modules if caller.allowed_modules is None else caller.allowed_modules
        module = call.tool_name.partition(".")[0]
        if not reaches(module, modules):
            return _refused(call, module_denial(module))
        tool = self.tools.find(call.tool_name)
        if self.tools.is_old:
            await self.tools.refresh(reads_all=False)
            tool = self.tools.find(call.tool_name)
        elif tool is None or denial(tool.access, caller.permission, modules):
            await self.tools.refresh()
            tool = self.tools.find(call.tool_name)
        if tool is None:
            self._note_unknown(call.tool_name)
        elif reason := denial(tool.access, caller.permission, modules):
            return _refused(call, reason, hint=FOR_NOBODY if reason == tool.access.closed else None)
        note("permission", "allowed" if tool is not None else "unknown_tool")
        return await proceed(call)

    def _note_unknown(self, tool_name: str) -> None:
        self.unknown += 1
        if tool_name not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(tool_name)
            log.warning("permission_not_checked", unknown_tool=tool_name, calls=self.unknown)


def _refused(call: PublishedCall, reason: str, *, hint: str | None = None) -> Attempt:
    note("permission", "denied")
    log.warning("tool_call_refused", reason=reason, user_id=call.caller.user_id)
    return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "permission_denied", reason, hint=hint))
