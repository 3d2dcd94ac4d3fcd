"""Translates a module's tool to the specification that the registry keeps, and back."""

from typing import Any

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.manifests.digests import digest_of, version_from
from toolfleet_registry.manifests.specs import ToolSpec

_IN_SPEC = {"name", "version", "description", "input_schema", "output_schema", "tags", "deprecated", "successor"}
_FLAT = "has_flat_parameters"


def spec_of(tool: ToolDefinition) -> ToolSpec:
    """The specification of a tool. Without a version of its own its digest names it.

    The flat form of the arguments is kept as it came: how it becomes a JSON Schema may change with us, and a digest must
    change with the module only. For the same reason fields that have their default are left out.
    """
    details: dict[str, Any] = tool.model_dump(mode="json", exclude=_IN_SPEC, exclude_defaults=True)
    if tool.input_schema is None:
        details[_FLAT] = True
        schema: dict[str, Any] = {parameter.name: parameter.type for parameter in tool.parameters}
    else:
        schema = tool.input_schema
    spec = ToolSpec(
        tool_name=tool.name,
        version=tool.version or None,
        description=tool.description,
        input_schema=schema,
        output_schema=tool.output_schema or {},
        tags=tool.tags,
        deprecated=tool.deprecated,
        successor=tool.successor,
        details=details,
    )
    return spec if spec.version else spec.model_copy(update={"version": version_from(digest_of(spec))})


def definition_of(spec: ToolSpec) -> ToolDefinition:
    """Return the tool of a specification made by `spec_of`.

    Raises `ValueError` if it has another origin, and is invalid.
    """
    details: dict[str, Any] = dict(spec.details)
    is_flat = details.pop(_FLAT, False)
    own = {
        "name": spec.tool_name,
        "version": None if spec.version == version_from(digest_of(spec)) else spec.version,
        "description": spec.description or "",
        "input_schema": None if is_flat else dict(spec.input_schema),
        "output_schema": dict(spec.output_schema) or None,
        "tags": spec.tags,
        "deprecated": spec.deprecated,
        "successor": spec.successor,
    }
    return ToolDefinition.model_validate(details | own)


def arguments_of(spec: ToolSpec) -> dict[str, Any]:
    """Return a specification's arguments, by name; empty if it is not a module's tool and describes them in another way."""
    flat = spec.details.get("parameters")
    if spec.details.get(_FLAT) and isinstance(flat, list):
        return {str(one["name"]): one for one in flat if isinstance(one, dict) and "name" in one}
    properties = spec.input_schema.get("properties")
    return properties if isinstance(properties, dict) else {}
