"""Checks a caller's rights a third time, after the listing and the agent's own check: with what this worker knows itself."""

from dataclasses import dataclass, field

from toolfleet_registry.contracts import ErrorCode, PublishedCall, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.calls import note, shown_user
from toolfleet_registry.permissions import Modules, denial, module_denial, reaches
from toolfleet_registry.policy.call_faults import version_fault
from toolfleet_registry.policy.hints import FOR_NOBODY
from toolfleet_registry.system.loggers import get_logger
from toolfleet_workers.runner import Proceed, ToolLookup

log = get_logger(__name__)

_MOST_NAMED = 1000  # unknown tools, each logged once; then their number must do


@dataclass
class PermissionCheck:
    """Runs a call only if its caller may use the tool, by the same rule as when it was listed and published.

    A call that names a version is run only while that one is in effect, which is read from Redis again. If Redis does
    not answer, the last known state holds, as for everything here.

    `default_modules` are those of a caller whose agent does not say, as earlier ones did: it has decided by the same.

    Fails closed: a call of an unknown tool has to wait (`wait_for`), and is `busy` if it comes all the same; `unknown`
    counts such calls, and the log names each tool once. Before it refuses for good, it has the manifests read again:
    they may have changed.
    """

    tools: ToolLookup
    default_modules: frozenset[str]
    unknown: int = field(default=0, init=False)
    _named: set[str] = field(default_factory=set[str], init=False)

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed, or refuse: with `permission_denied`, `unknown_tool`, `version_mismatch`, or `busy` if it cannot be decided."""
        caller = call.caller
        modules = self._modules_of(call)
        module = call.tool_name.partition(".")[0]
        if not reaches(module, modules):
            return _denied(call, module_denial(module))
        tool = self.tools.find(call.tool_name)
        if self.tools.is_old:
            await self.tools.refresh(reads_all=False)
            tool = self.tools.find(call.tool_name)
        elif tool is None or denial(tool.access, caller.permission, modules):
            await self.tools.refresh()
            tool = self.tools.find(call.tool_name)
        elif call.tool_version is not None:  # which may have changed since it was published, and just now
            await self.tools.refresh(reads_all=False)
            tool = self.tools.find(call.tool_name)
        if tool is None:
            return await self._unknown(call, proceed)
        if reason := denial(tool.access, caller.permission, modules):
            return _denied(call, reason, hint=FOR_NOBODY if reason == tool.access.closed else None)
        note("permission", "allowed")
        if fault := version_fault(tool.definition, call.tool_version):
            return _refused(call, Outcome.PERMANENT, "version_mismatch", fault)
        return await proceed(call)

    def wait_for(self, call: PublishedCall) -> float | None:
        """Return how many seconds a call of an unknown tool must wait; `None` if it can be decided now."""
        name = call.tool_name
        module = name.partition(".")[0]
        if not reaches(module, self._modules_of(call)) or self.tools.find(name) is not None:
            return None
        if not self.tools.serves(module) or self.tools.lacks(name):
            return None
        self._note_unknown(name)
        return self.tools.inquire(name)

    async def _unknown(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        name = call.tool_name
        if not self.tools.serves(name.partition(".")[0]):  # its executor knows no address, and says so
            note("permission", "unknown_module")
            return await proceed(call)
        if self.tools.lacks(name):
            note("permission", "unknown_tool")
            return _refused(call, Outcome.PERMANENT, "unknown_tool", f"Unknown tool: {name}")
        self._note_unknown(name)
        note("permission", "not_known")
        return _refused(call, Outcome.NOT_SENT, "busy", f"Who may use {name!r} is not known now.")

    def _modules_of(self, call: PublishedCall) -> Modules:
        allowed = call.caller.allowed_modules
        return self.default_modules if allowed is None else allowed

    def _note_unknown(self, tool_name: str) -> None:
        self.unknown += 1
        if tool_name not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(tool_name)
            log.warning("permission_not_known", unknown_tool=tool_name, calls=self.unknown)


def _denied(call: PublishedCall, reason: str, *, hint: str | None = None) -> Attempt:
    note("permission", "denied")
    return _refused(call, Outcome.PERMANENT, "permission_denied", reason, hint=hint)


def _refused(
    call: PublishedCall, outcome: Outcome, code: ErrorCode, reason: str, *, hint: str | None = None
) -> Attempt:
    log.warning("tool_call_refused", reason=reason, user_id=shown_user(call.caller.user_id))
    return Attempt(outcome, ToolResult.refused(call.tool_name, code, reason, hint=hint))
