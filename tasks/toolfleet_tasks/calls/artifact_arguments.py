"""Binds arguments to artifacts: `{"$artifact": "<id>"}` in place of an argument's value passes an artifact to a tool.

The agent finds out whose it is, leaves its place open in the tool's schema, and binds the argument to the artifact's digest: an
approval, an idempotency key and the audit are about this content. The worker puts the content there, and checks the whole.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.contracts import Caller, ToolDefinition, ToolResult
from toolfleet_registry.contracts.artifacts import HANDLE, NOT_YOURS, named_artifacts
from toolfleet_registry.contracts.calls import ArtifactArgument
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_tasks.artifacts import Artifacts
from toolfleet_tasks.messages import fleet_results

Bound: TypeAlias = tuple[dict[str, Any], tuple[ArtifactArgument, ...]]
"""Arguments with the digests of the artifacts that they name, and these."""


class ArtifactBinding:
    """Binds the calls of one agent. `artifacts` returns those of its fleet."""

    def __init__(self, artifacts: Callable[[], Artifacts], catalog: Catalog) -> None:
        self._artifacts, self._catalog = artifacts, catalog

    def opened(self, tool: ToolDefinition, arguments: Any) -> ToolDefinition:
        """Return the tool as it takes anything where the arguments name artifacts; the same if they name none."""
        schema = input_schema(tool)
        names = named_artifacts(arguments).keys() & schema["properties"].keys()
        if not names:
            return tool
        properties = {**schema["properties"], **{name: {} for name in names}}
        return tool.model_copy(update={"input_schema": {**schema, "properties": properties}})

    async def bound(
        self, tool_name: str, arguments: dict[str, Any], caller: Caller, owner: str | None
    ) -> Bound | ToolResult:
        """Return the bound arguments, or the refusal of an artifact that is not the owner's, or whose tool the caller may not use."""
        bound, found = dict(arguments), list[ArtifactArgument]()
        for name, value in named_artifacts(arguments).items():
            try:
                record = await self._artifacts().find(value[HANDLE], owner)
            except FleetUnavailable as exc:
                return fleet_results.fleet_unavailable(tool_name, str(exc))
            is_usable = record is not None and self._catalog.reached(record.tool_name, caller) is not None
            if record is None or not is_usable or value.get("sha256", record.sha256) != record.sha256:
                return ToolResult.refused(tool_name, "invalid_arguments", f"{name}: {NOT_YOURS}")
            bound[name] = {HANDLE: record.id, "sha256": record.sha256, "size": record.size}
            found.append(ArtifactArgument(name=name, id=record.id, sha256=record.sha256))
        return bound, tuple(found)
