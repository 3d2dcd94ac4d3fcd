"""Hides personal data in the arguments of a call before it is published, as its agent's profile says: nobody stores it then."""

import dataclasses

from toolfleet_registry.agents.data_guards import counted
from toolfleet_registry.catalog.catalog import Catalog, Judged
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.decisions import note
from toolfleet_registry.errors import PersonalDataBlocked
from toolfleet_registry.schemas.arguments import size_of


async def without_personal_data(judged: Judged, catalog: Catalog) -> Judged | ToolResult:
    """The call with what its tool may be told, which is not judged anew; or the refusal where its profile blocks such data."""
    profile = judged.reach.profile
    specs = () if profile is None else profile.rules(judged.tool).personal_data
    if not specs:
        return judged
    arguments = judged.arguments
    try:
        hidden = await catalog.profiles.guards.hide(specs, "arguments", arguments, size=size_of(arguments))
    except PersonalDataBlocked as exc:
        note("personal_data", "blocked")
        return ToolResult.refused(judged.tool.name, "invalid_arguments", f"Tool call refused: {exc}")
    if hidden.counts:
        note("personal_data", counted(hidden.counts))
    return judged if hidden.value is arguments else dataclasses.replace(judged, arguments=hidden.value)
