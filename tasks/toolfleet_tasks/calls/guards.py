"""Applies what agents' profiles put around a call in its agent's own process."""

import asyncio
import dataclasses
from typing import Any

from toolfleet_registry.agents import approval_rules as rules_of
from toolfleet_registry.agents.approval_rules import terms_of_approval
from toolfleet_registry.agents.data_guards import counted
from toolfleet_registry.agents.own_classes import OwnClasses
from toolfleet_registry.agents.reach import Reach
from toolfleet_registry.catalog.catalog import Catalog, Judged
from toolfleet_registry.config.agents.middleware_specs import OwnMiddlewareSpec, PiiSpec
from toolfleet_registry.contracts import Caller, PublishedCall, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.approval_terms import ApprovalRule
from toolfleet_registry.contracts.decisions import note
from toolfleet_registry.errors import PersonalDataBlocked, UnknownAgent
from toolfleet_registry.schemas.arguments import size_of
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

_OWN_MIDDLEWARE_SECONDS = 2.0  # for each: an agent's user waits meanwhile


async def without_personal_data(judged: Judged, catalog: Catalog) -> Judged | ToolResult:
    """Return the call with the arguments its tool may have, without judging it again; or the refusal if its profile blocks such data."""
    hidden = await hidden_arguments(judged.tool, judged.reach, judged.arguments, catalog)
    if isinstance(hidden, ToolResult) or hidden is judged.arguments:
        return hidden if isinstance(hidden, ToolResult) else judged
    return dataclasses.replace(judged, arguments=hidden)


def specs_of(tool: ToolDefinition, reach: Reach) -> tuple[PiiSpec, ...]:
    """Return what the caller's agent has hidden around calls of the tool."""
    return () if reach.profile is None else reach.profile.rules(tool).personal_data


async def hidden_arguments(
    tool: ToolDefinition, reach: Reach, arguments: dict[str, Any], catalog: Catalog
) -> dict[str, Any] | ToolResult:
    """Arguments as the tool may be told them, the very same if there is nothing to hide; or the refusal."""
    specs = specs_of(tool, reach)
    if not specs:
        return arguments
    try:
        hidden = await catalog.profiles.guards.hide(specs, "arguments", arguments, size=size_of(arguments))
    except PersonalDataBlocked as exc:
        note("personal_data", "blocked")
        return ToolResult.refused(tool.name, "invalid_arguments", f"Tool call refused: {exc}")
    if hidden.counts:
        note("personal_data", counted(hidden.counts))
    found: dict[str, Any] = hidden.value
    return found


class OwnCallMiddleware:
    """The operators' middleware of the profiles that the catalog knows."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def changed(self, call: ToolCall, caller: Caller) -> ToolCall | ToolResult:
        """The call with the arguments that they leave, or the first refusal."""
        own = self._catalog.profiles.own
        for spec in self._specs(call, caller):
            if own is None or not own.runs_here(spec):
                continue
            answer = await _asked(own, spec, call, caller)
            if isinstance(answer, ToolResult):
                return answer
            call = call.model_copy(update={"arguments": answer.arguments})
        return call

    def _specs(self, call: ToolCall, caller: Caller) -> list[OwnMiddlewareSpec]:
        profiles = self._catalog.profiles
        if caller.agent is None and profiles.is_empty:  # nearly every call
            return []
        try:
            profile, tool = profiles.of(caller), self._catalog.find(call.tool_name)
        except UnknownAgent:  # it is refused where it is judged
            return []
        if profile is None or tool is None:
            return []
        return list(profile.rules(tool.definition).own)


async def _asked(own: OwnClasses, spec: OwnMiddlewareSpec, call: ToolCall, caller: Caller) -> ToolCall | ToolResult:
    try:
        async with asyncio.timeout(_OWN_MIDDLEWARE_SECONDS):
            answer: object = await own.made(spec)(call, caller)
    except TimeoutError:
        return _failed(spec, call, "it did not answer in time")
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - operators' own code raises anything
        return _failed(spec, call, f"it raised {type(exc).__name__}")
    if isinstance(answer, ToolResult) and not answer.success:
        return answer
    if isinstance(answer, ToolCall) and answer.tool_name == call.tool_name:
        return answer
    return _failed(spec, call, "what it returned is neither the call nor a refusal")


def _failed(spec: OwnMiddlewareSpec, call: ToolCall, reason: str) -> ToolResult:
    log.warning("own_middleware_failed", middleware=spec.name, tool=call.tool_name[:256], reason=reason)
    text = f"Tool call refused: the middleware {spec.name!r} of the agent's profile failed, and {reason}."
    return ToolResult.refused(call.tool_name, "internal", text)


def approval_rules(tool: ToolDefinition, reach: Reach) -> tuple[ApprovalRule, ...]:
    """The rules that have people approve calls of the tool: its own, and those of the profile, if there is one."""
    specs = () if reach.profile is None else reach.profile.rules(tool).approvals
    return rules_of.approval_rules(tool, specs)


def with_approval(call: PublishedCall, judged: Judged, asked_by: tuple[str, ...]) -> PublishedCall:
    """The call with what people have to approve of it, if they have to, and by which credentials it was asked for."""
    rules = approval_rules(judged.tool, judged.reach)
    if not rules:
        return call
    return call.model_copy(update={"approval": terms_of_approval(call, judged.tool, rules), "asked_by": asked_by})
