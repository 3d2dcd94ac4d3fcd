"""Hides personal data in the arguments of a call before it is published, as its agent's profile says: nobody stores it then."""

import dataclasses
from typing import Any

from toolfleet_registry.agents.data_guards import counted
from toolfleet_registry.agents.reach import Reach
from toolfleet_registry.catalog.catalog import Catalog, Judged
from toolfleet_registry.config.agents.middleware_specs import PiiSpec
from toolfleet_registry.contracts import ToolDefinition, ToolResult
from toolfleet_registry.contracts.decisions import note
from toolfleet_registry.errors import PersonalDataBlocked
from toolfleet_registry.schemas.arguments import size_of


async def without_personal_data(judged: Judged, catalog: Catalog) -> Judged | ToolResult:
    """The call with what its tool may be told, which is not judged anew; or the refusal where its profile blocks such data."""
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
