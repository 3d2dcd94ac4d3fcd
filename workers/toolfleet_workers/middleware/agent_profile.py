"""Checks a call against its agent's profile, as this worker knows it: its publisher may have known another one, or none."""

from collections.abc import Callable
from dataclasses import dataclass

from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.profile_rules import (
    NO_RULES,
    EffectiveProfile,
    ToolRules,
    approval_fault,
    approval_rules,
)
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.calls import CONVERSATION, USER, note, note_ids, shown_user
from toolfleet_registry.errors import UnknownAgent
from toolfleet_registry.system.loggers import get_logger
from toolfleet_workers.runner import Proceed, ToolLookup

log = get_logger(__name__)

_PASSED_GATE = frozenset({"allowed", "asked_for_job"})  # what an agent notes of a gate that has let a call pass


@dataclass
class ProfileCheck:
    """Runs a call only if its agent's profile allows the tool, and with no more rights than the profile leaves.

    A call whose profile wants a closed gate must have passed it: its agent's signed note says so. Fails closed: an
    agent whose profile is not known here, also after reading the registry's, may do nothing. `default_modules` are
    those of a caller whose message does not say.
    """

    tools: ToolLookup
    profiles: KnownProfiles
    default_modules: frozenset[str]

    def skips(self, call: PublishedCall) -> bool:
        """Return whether there is no profile to check the call against, which holds for nearly every call."""
        return call.caller.agent is None and self.profiles.is_empty

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed with the narrowed caller, or refuse with `permission_denied`."""
        reason = self._reason(call)
        if reason is not None:  # it may have been changed just now
            await self.tools.refresh()
            reason = self._reason(call)
        if USER not in call.decisions:  # its agent has not known such a profile
            note_ids(self.profiles.shown_ids(call.caller, call.user_id, call.decisions.get(CONVERSATION)))
        if reason is not None:
            note("agent", "denied")
            log.warning("tool_call_refused", reason=reason, user_id=shown_user(call.caller.user_id))
            return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "permission_denied", reason))
        profile = self.profiles.of(call.caller)
        if profile is not None:
            if self.rules_for(call).gate_fails_closed and call.decisions.get("gate") not in _PASSED_GATE:
                return _without_gate(call)
            note("agent", "allowed")
            call = self._narrowed(call, profile)
        return await proceed(call)

    def rules_for(self, call: PublishedCall) -> ToolRules:
        """Return the rules of the agent's profile for the call's tool; empty if there is none, or it is not known here."""
        if call.caller.agent is None and self.profiles.is_empty:
            return NO_RULES
        tool = self.tools.find(call.tool_name)
        if tool is None:
            return NO_RULES
        try:
            profile = self.profiles.of(call.caller)
        except UnknownAgent:  # such a call is refused before anything is run
            return NO_RULES
        return NO_RULES if profile is None else profile.rules(tool.definition)

    def _reason(self, call: PublishedCall) -> str | None:
        try:
            profile = self.profiles.of(call.caller)
        except UnknownAgent as exc:
            return str(exc)
        tool = self.tools.find(call.tool_name)
        return None if profile is None or tool is None else profile.denial(tool.definition)

    def _narrowed(self, call: PublishedCall, profile: EffectiveProfile) -> PublishedCall:
        caller = profile.narrowed(call.caller, self.default_modules)
        return call if caller == call.caller else call.model_copy(update={"caller": caller})


@dataclass
class ApprovalCheck:
    """Runs a call that needs an approval, by its tool, the settings or its agent's profile, only under an approval of this very call.

    The ledger has said whether that was given. It comes after the middleware that finds the tool. Fails closed: a call
    that names no approval is refused, from any publisher.
    """

    tools: ToolLookup
    rules_for: Callable[[PublishedCall], ToolRules]

    def skips(self, call: PublishedCall) -> bool:
        """Return whether no approval is needed, which holds for nearly every call."""
        tool = self.tools.find(call.tool_name)
        is_asked_for = tool is not None and (tool.definition.approval or self.rules_for(call).approvals)
        return call.approval is None and not is_asked_for

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed, or refuse a call that names no approval, or another than may have been given."""
        tool = self.tools.find(call.tool_name)
        if tool is None:  # its module is not served here, as what runs it says
            return await proceed(call)
        fault = approval_fault(call, tool.definition, approval_rules(tool.definition, self.rules_for(call).approvals))
        if fault is None:
            return await proceed(call)
        note("approval", "missing" if call.approval is None else "changed")
        log.warning("tool_call_refused", reason=fault, user_id=shown_user(call.caller.user_id))
        text = f"Tool call refused: {fault}."
        return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "approval_denied", text))


def _without_gate(call: PublishedCall) -> Attempt:
    """Refuse a call that no gate has let pass: its agent has none, knows another profile, or has made it past its gate."""
    note("gate", "missing")
    log.warning("tool_call_without_gate", user_id=shown_user(call.caller.user_id), agent=call.caller.agent)
    text = f"Tool call blocked: the profile of agent {call.caller.agent!r} requires a gate for it, and none has approved it."
    return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "blocked_by_gate", text))
