"""Binds arguments to artifacts: `{"$artifact": "<id>"}` in place of an argument's value passes an artifact to a tool.

The agent finds out whose it is, leaves its place open in the tool's schema, and binds the argument to the artifact's digest: an
approval, an idempotency key and the audit are about this content. The worker puts the content there, and checks the whole.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.contracts import Caller, ToolDefinition, ToolResult
from toolfleet_registry.contracts.artifacts import HANDLE, NOT_YOURS, has_handle, named_artifacts
from toolfleet_registry.contracts.calls import ArtifactArgument
from toolfleet_registry.contracts.tool_definition import argument_path
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.local.scheduler_tools import ADD_JOB
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_tasks.artifacts import Artifacts
from toolfleet_tasks.messages import fleet_results

_EXAMPLE = f'{{"{HANDLE}": "<id>"}}'

Bound: TypeAlias = tuple[dict[str, Any], tuple[ArtifactArgument, ...]]
"""Arguments with the digests of the artifacts that they name, and these."""


class ArtifactBinding:
    """Binds the calls of one agent. `artifacts` returns those of its fleet."""

    def __init__(self, artifacts: Callable[[], Artifacts], catalog: Catalog) -> None:
        self._artifacts, self._catalog = artifacts, catalog

    def opened(self, tool: ToolDefinition, arguments: Any) -> ToolDefinition:
        """Return the tool as it takes anything where the arguments name artifacts; the same if they name none."""
        if not (named := named_artifacts(arguments)):  # a schema is copied whole
            return tool
        schema = input_schema(tool)
        names = named.keys() & schema["properties"].keys()
        if not names:
            return tool
        properties = {**schema["properties"], **{name: {} for name in names}}
        return tool.model_copy(update={"input_schema": {**schema, "properties": properties}})

    async def bound(
        self, tool: ToolDefinition, arguments: dict[str, Any], caller: Caller, owner: str | None
    ) -> Bound | ToolResult:
        """Return the bound arguments, or a refusal.

        Refused are an artifact that is not the owner's, or whose tool the caller may not use; a handle within an argument,
        which the tool would get as it is; and one in place of the argument by which calls wait for each other: without the
        content nothing is known of their order.
        """
        bound, found, named = dict(arguments), list[ArtifactArgument](), named_artifacts(arguments)
        if tool.name != ADD_JOB and has_handle({name: arguments[name] for name in arguments.keys() - named.keys()}):
            return _refused(tool, f"A handle is the whole argument, without other members: {_EXAMPLE}.")
        if (by := (argument_path(tool.concurrency_key or "") or ("",))[0]) in named:
            return _refused(tool, f"{by}: calls wait for each other by it, so that it must be the value itself.")
        for name, value in named.items():
            try:
                record = await self._artifacts().find(value[HANDLE], owner)
            except FleetUnavailable as exc:
                return fleet_results.fleet_unavailable(tool.name, str(exc))
            is_usable = record is not None and self._catalog.reached(record.tool_name, caller) is not None
            if record is None or not is_usable or value.get("sha256", record.sha256) != record.sha256:
                return _refused(tool, f"{name}: {NOT_YOURS}")
            bound[name] = {HANDLE: record.id, "sha256": record.sha256, "size": record.size}
            found.append(ArtifactArgument(name=name, id=record.id, sha256=record.sha256))
        return bound, tuple(found)


def _refused(tool: ToolDefinition, text: str) -> ToolResult:
    return ToolResult.refused(tool.name, "invalid_arguments", text)
