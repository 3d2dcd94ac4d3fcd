"""The third look at a caller's rights, after the listing and the agent's own: with what this worker knows itself."""

from dataclasses import dataclass, field
from typing import Protocol

import structlog

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_registry.permissions import module_denial, permits, reaches, tool_denial
from toolfleet_workers.runner import Proceed

log = structlog.get_logger(__name__)

_MOST_NAMED = 1000  # tools that nobody knows, each logged once; then their number must do
_LONGEST_SHOWN = 256  # characters of what a module asks for


class Tools(Protocol):
    """Knows what the modules' tools ask for."""

    def required(self, tool_name: str) -> str | None:
        """The permission that the tool asks for; `None` if nothing is known of it."""
        ...

    async def refresh(self) -> None:
        """Learn what has changed; returns soon, also if that does not work."""
        ...


@dataclass
class PermissionCheck:
    """Runs a call only if its caller may reach the module and use the tool; `default_modules` for one who does not say.

    A tool that nothing is known of fails open, for its agent has looked as well: `unknown` counts such calls, and the
    log names each tool once. Before it refuses, it has the manifests read again: they may have changed.
    """

    tools: Tools
    default_modules: frozenset[str]
    unknown: int = field(default=0, init=False)
    _named: set[str] = field(default_factory=set[str], init=False)

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed, or refuse with `permission_denied`."""
        module, modules = call.tool_name.partition(".")[0], call.caller.allowed_modules
        if not reaches(module, self.default_modules if modules is None else modules):
            return _refused(call, module_denial(module))
        permission = call.caller.permission
        required = self.tools.required(call.tool_name)
        if required is None or not permits(permission, required):
            await self.tools.refresh()
            required = self.tools.required(call.tool_name)
            if required is None:
                self._note_unknown(call.tool_name)
            elif not permits(permission, required):
                return _refused(call, tool_denial(call.tool_name, permission, required[:_LONGEST_SHOWN]))
        return await proceed(call)

    def _note_unknown(self, tool_name: str) -> None:
        self.unknown += 1
        if tool_name not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(tool_name)
            log.warning("permission_not_checked", unknown_tool=tool_name, calls=self.unknown)


def _refused(call: PublishedCall, reason: str) -> Attempt:
    log.warning("tool_call_refused", reason=reason, user_id=call.caller.user_id)
    return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "permission_denied", reason))
