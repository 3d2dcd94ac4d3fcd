"""Tells why a caller may call a tool, or may not: by the catalog's own judgement, and what the limits say now."""

import asyncio
from collections.abc import Sequence

from toolfleet_registry.agents.explanation import ExplainedTool, ToolExplanation, ToolRule, rules_about
from toolfleet_registry.agents.reach import reach_of
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.contracts import Caller, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.quota import read_remaining, refusal_now
from toolfleet_tasks.limits import NOWHERE, Limit, Within, limits_of, terms_for
from toolfleet_tasks.redis.connection import PipelinedConnection

_SECONDS = 2.0


async def explained(
    catalog: Catalog,
    connection: PipelinedConnection,
    settings: Settings,
    tool_name: str,
    caller: Caller,
    within: Within = NOWHERE,
) -> ToolExplanation:
    """Return all rules about the call; `within`: its run and conversation.

    If Redis does not answer in time, limits count as passed, as they do for calls.
    """
    usable = catalog.usable(ToolCall(tool_name=tool_name), caller)
    tool = ExplainedTool(tool_name, tool_name.partition(".")[0] in catalog.modules, catalog.find(tool_name))
    rules = list(rules_about(tool, caller, catalog.profiles, settings))
    if isinstance(usable, ToolResult):
        refusal: ToolResult | None = usable
    else:
        limits = _limits(catalog, settings, usable, caller, within)
        refusal = await refusal_now(connection, tool_name, limits, intent=None, seconds=_SECONDS)
        more = await _totals(connection, limits, within)
        if refusal is not None and all(rule.passes for rule in more):
            said = refusal.error or "A limit is used up."
            more.append(ToolRule(about="limits", passes=False, says=said, place="what was used today"))
        after = [place for place, each in enumerate(rules) if each.about in _AFTER_LIMITS]
        first = after[0] if after else len(rules)
        rules[first:first] = more
    reason = None if refusal is None else refusal.error
    return ToolExplanation(
        tool_name=tool_name, caller=caller, is_allowed=refusal is None, reason=reason, rules=tuple(rules)
    )


def _limits(
    catalog: Catalog, settings: Settings, tool: ToolDefinition, caller: Caller, within: Within
) -> tuple[Limit, ...]:
    """Return the limits towards which a call would count. Nothing is counted."""
    profile = reach_of(caller, catalog.profiles, settings.default_guest_modules).profile
    terms = terms_for(tool, None if profile is None else profile.rules(tool).terms, settings)
    return limits_of(tool.name, caller.user_id, terms, settings, within)


async def _totals(connection: PipelinedConnection, limits: Sequence[Limit], within: Within) -> list[ToolRule]:
    """Return how much of each limit the run and the conversation have used; empty if Redis does not say."""
    found = list[ToolRule]()
    for limit in limits:
        if (total := limit.total) is None:
            continue
        try:
            async with asyncio.timeout(_SECONDS):
                (use,) = (await read_remaining(connection, [limit])).totals.values()
        except (FleetUnavailable, TimeoutError):
            break
        what, name = ("Run", within.run_id) if total.kind == "run" else ("Conversation", within.thread_id)
        says = f"{what} {name!r} has made {use.used} of its {total.most} calls of this kind."
        place = "what the run has used" if total.kind == "run" else "what the conversation has used"
        found.append(ToolRule(about="limits", passes=use.used < total.most, says=says, place=place))
    return found


_AFTER_LIMITS = {"gate", "approval", "pii", "retry", "own"}
