"""Tells why a caller may call a tool, or may not: by the catalog's own judgement, and what the limits say now."""

from toolfleet_registry.agents.explanation import ExplainedTool, ToolExplanation, ToolRule, rules_about
from toolfleet_registry.agents.reach import reach_of
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.contracts import Caller, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission.limits import limits_of, terms_for
from toolfleet_tasks.client.quota import refusal_now
from toolfleet_tasks.redis.connection import PipelinedConnection

_SECONDS = 2.0


async def explained(
    catalog: Catalog, connection: PipelinedConnection, settings: Settings, tool_name: str, caller: Caller
) -> ToolExplanation:
    """Everything that has a say. Where Redis does not answer in time, limits are taken to let it pass, as they do."""
    usable = catalog.usable(ToolCall(tool_name=tool_name), caller)
    tool = ExplainedTool(tool_name, tool_name.partition(".")[0] in catalog.modules, catalog.find(tool_name))
    rules = list(rules_about(tool, caller, catalog.profiles, settings))
    refusal = (
        usable if isinstance(usable, ToolResult) else await _limited(catalog, connection, settings, usable, caller)
    )
    if isinstance(usable, ToolDefinition) and refusal is not None:
        said = refusal.error or "A limit is used up."
        rule = ToolRule(about="limits", passes=False, says=said, place="what was used today")
        after = [place for place, each in enumerate(rules) if each.about in _AFTER_LIMITS]
        rules.insert(after[0] if after else len(rules), rule)
    reason = None if refusal is None else refusal.error
    return ToolExplanation(
        tool_name=tool_name, caller=caller, is_allowed=refusal is None, reason=reason, rules=tuple(rules)
    )


async def _limited(
    catalog: Catalog, connection: PipelinedConnection, settings: Settings, tool: ToolDefinition, caller: Caller
) -> ToolResult | None:
    """What the limits have against a call now. Nothing is counted."""
    profile = reach_of(caller, catalog.profiles, settings.default_guest_modules).profile
    terms = terms_for(tool, None if profile is None else profile.rules(tool).terms, settings)
    limits = limits_of(tool.name, caller.user_id, terms, settings)
    return await refusal_now(connection, tool.name, limits, intent=None, seconds=_SECONDS)


_AFTER_LIMITS = {"gate", "approval", "pii", "retry", "own"}
