"""Tells what a caller may call now: by which rules a tool may be called or not, and what is left of the limits in Redis."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from toolfleet_registry.agents.known_profiles import reach_of
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.contracts import Caller, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.calls import note
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.policy.limits import Remaining
from toolfleet_registry.settings import Settings
from toolfleet_tasks.limits import JUDGE, NOWHERE, READ, Limit, Within, limits_of, refused_by, remaining, terms_for
from toolfleet_tasks.redis_connection import PipelinedConnection, run

if TYPE_CHECKING:
    from toolfleet_registry.agents.explanation import ToolExplanation, ToolRule

_PATIENCE_SECONDS = 5.0  # a look takes a millisecond, or Redis is away
_POLL_SECONDS = 2.0  # before a gate, which may take as long: an agent's user waits meanwhile
_CHUNK = 200  # limits a script, so that none holds Redis up
_SECONDS = 2.0


async def read_remaining(connection: PipelinedConnection, limits: Sequence[Limit]) -> Remaining:
    """Return the use of these limits. Raises `FleetUnavailable` when Redis does not answer within 5 s."""
    now, uses = 0, list[int]()
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            for start in range(0, max(len(limits), 1), _CHUNK):
                chunk = limits[start : start + _CHUNK]
                terms = [limit.args for limit in chunk]
                command = READ.command(limits=[limit.key for limit in chunk], terms=terms)
                now, *used = await connection.execute(*command)
                uses += used
    except (OSError, ResponseError) as exc:  # TimeoutError is an OSError
        raise FleetUnavailable(f"Redis does not say what is left: {str(exc) or 'no answer'}") from exc
    return remaining(limits, [now, *uses])


async def refusal_now(
    connection: PipelinedConnection, tool_name: str, limits: Sequence[Limit], *, intent: str | None, seconds: float
) -> ToolResult | None:
    """Return the result of a call that its limits would refuse now.

    It is asked before an agent's gate, and takes nothing.

    `intent` is the key of its idempotency record, under which it may join another call. Fails open, after `seconds` at
    the latest: admission judges again, and counts it.
    """
    if not limits:
        return None
    parameters = JUDGE.parameters(
        intent=intent or limits[0].key,
        limits=[limit.key for limit in limits],
        has_intent=int(bool(intent)),
        terms=[limit.args for limit in limits],
    )
    try:
        async with asyncio.timeout(min(seconds, _POLL_SECONDS)):
            answer = await run(connection, JUDGE, parameters)
    except (OSError, ResponseError):
        return None
    if not isinstance(answer, list):
        return None
    note("limits", "denied")
    return refused_by(tool_name, limits, answer[1:])


async def explained(
    catalog: Catalog,
    connection: PipelinedConnection,
    settings: Settings,
    tool_name: str,
    caller: Caller,
    within: Within = NOWHERE,
) -> "ToolExplanation":
    """Return all rules about the call; `within`: its run and conversation.

    If Redis does not answer in time, limits count as passed, as they do for calls.
    """
    from toolfleet_registry.agents.explanation import (  # of what people ask, and no call
        ExplainedTool,
        ToolExplanation,
        ToolRule,
        rules_about,
    )

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


async def _totals(connection: PipelinedConnection, limits: Sequence[Limit], within: Within) -> "list[ToolRule]":
    """Return how much of each limit the run and the conversation have used; empty if Redis does not say."""
    from toolfleet_registry.agents.explanation import ToolRule  # as in `explained`

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
