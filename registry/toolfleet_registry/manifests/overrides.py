"""Overrides a manifest for single tools: disabled, withheld, kept at the registered version, or faulty.

They travel with the manifest, in the same value of the cache, so that agents and workers need no other look at
the registry.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from toolfleet_registry.contracts import Message, ModuleManifest, ToolDefinition
from toolfleet_registry.contracts.names import name_fault
from toolfleet_registry.contracts.tool_definition import ToolLines, joined
from toolfleet_registry.manifests.effects import effect_of
from toolfleet_registry.permissions import Access, level_of_tool


class ToolOverride(Message):
    """The exceptions for one tool. A tool without any has no override.

    `is_disabled`: an operator has switched it off. `is_withheld`: its module is pinned, and the offer is not approved.
    `kept`: the offer has the version of the registered tool and different content, or an operator has rolled the tool
    back, so that this one, the registered, stays in effect. `fault`: what is wrong with it. `digest`: of the offer, if
    it is not approved.
    """

    is_disabled: bool = False
    is_withheld: bool = False
    kept: ToolDefinition | None = None
    fault: str | None = None
    digest: str | None = None


Pending: TypeAlias = Literal["drifted", "withheld", "rolled_back", "changed"]
"""Why what a module offers is not in effect: it is other content under the same version, its module is pinned, or an operator has gone back.
`changed`: it is in effect, and no operator has accepted it."""

Verdicts: TypeAlias = Mapping[str, ToolOverride]
"""Tool name -> what is not as its manifest says."""


@dataclass(frozen=True, slots=True)
class SeenTool:
    """A tool as it is in effect: the definition that holds, and who may use it."""

    definition: ToolDefinition
    access: Access


def pending_because(offered: ToolDefinition, verdict: ToolOverride) -> Pending | None:
    """Return why an offer is not in effect and waits for an approval; `None` if it does not."""
    if verdict.digest is None:
        return None
    if verdict.is_withheld:
        return "withheld"
    kept = verdict.kept
    # Without versions the content names them: it cannot differ under the same one.
    is_rolled_back = kept is not None and (not offered.version or kept.version != offered.version)
    return "rolled_back" if is_rolled_back else "drifted"


def seen_tools(manifest: ModuleManifest, verdicts: Verdicts, own: ToolLines | None = None) -> Iterator[SeenTool]:
    """Yield the manifest's tools as they are in effect, with settings applied: stored ones, and this process's `own`."""
    module = manifest.module_name
    for offered in manifest.tools:
        verdict = verdicts.get(offered.name)
        tool = offered if verdict is None or verdict.kept is None else verdict.kept
        if (
            tool is not offered and offered.approval
        ):  # what its author asks for now holds at once: people are asked rather than not
            tool = tool.model_copy(update={"approval": joined(tool.approval, offered.approval)})
        for lines in (manifest.lines, own):
            tool = tool if lines is None else lines.on(tool, effect_of(tool))
        closed = closed_because(tool.name, verdict or _NOTHING)
        yield SeenTool(tool, Access(tool.name, module, tool.required_permission, closed))


def broken_tools(manifest: ModuleManifest, verdicts: Verdicts) -> tuple[str, ...]:
    """Return the tools that cannot be used because of their own definitions, sorted."""
    faulty = {name for name, verdict in verdicts.items() if verdict.fault is not None}
    faulty |= {tool.name for tool in manifest.tools if name_fault(tool.name) is not None}
    seen = seen_tools(manifest, verdicts)
    return tuple(
        sorted(
            tool.access.tool_name
            for tool in seen
            if level_of_tool(tool.access.required_permission) is None or tool.access.tool_name in faulty
        )
    )


def closed_because(tool_name: str, verdict: ToolOverride) -> str | None:
    """Return why no caller may use the tool now, or `None`."""
    if verdict.is_disabled:
        return f"Tool {tool_name!r} is disabled by an operator."
    if verdict.is_withheld:
        return f"Tool {tool_name!r} is withheld: no operator has approved what its module offers now."
    fault = verdict.fault or name_fault(tool_name)
    return None if fault is None else f"Tool {tool_name!r} is closed: {fault}."


_NOTHING = ToolOverride()
