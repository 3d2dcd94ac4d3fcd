"""Decides which manifests may come in: no module takes over another's tools.

The rules hold for a module's answers and for manifests from the cache. Every refusal names what is wrong.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from toolfleet_registry.contracts import ModuleManifest, ToolAnnotations, ToolDefinition, ToolParameter
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.contracts.tool_definition import BROKEN
from toolfleet_registry.errors import InvalidToolName, ManifestRefused
from toolfleet_registry.permissions import level_of_tool
from toolfleet_registry.system.http_bodies import MAX_DEPTH, loads_strict

# Far more than a module has; 4 MiB of the shortest tools would be 200,000 objects in every agent's memory.
MAX_TOOLS = 10_000


def read_document(data: bytes, *, depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Parse a manifest's text, of at most `depth` levels. Raises `ManifestRefused`."""
    try:
        document = loads_strict(data, depth=depth)
    except ValueError as exc:
        raise ManifestRefused(f"manifest is {exc}") from exc
    if not isinstance(document, dict):
        raise ManifestRefused("manifest is not a JSON object")
    return document


def admit(module: str, document: Mapping[str, Any]) -> ModuleManifest:
    """Return the manifest, if it is that of `module` and offers only tools of its own. Raises `ManifestRefused`.

    A tool with a valid name and other invalid fields is kept as a closed one: no caller may use it, the other tools are
    not affected, and `permissions.broken_because` says what is wrong.
    """
    tools = document.get("tools")
    if isinstance(tools, list) and len(tools) > MAX_TOOLS:
        raise ManifestRefused(f"manifest has {len(tools)} tools; {MAX_TOOLS} are allowed")
    try:
        read = [_tool(tool) for tool in tools] if isinstance(tools, list) else tools
        manifest = ModuleManifest.model_validate({**document, "tools": read} if "tools" in document else document)
    except ValidationError as exc:
        raise ManifestRefused(_first_fault(exc)) from exc
    if manifest.module_name != module:
        raise ManifestRefused(f"manifest is that of module {_shown(manifest.module_name)}, not of {module!r}")
    _check_tool_names(manifest)
    return manifest


def closed_tools(manifest: ModuleManifest) -> tuple[str, ...]:
    """Return the tools that no caller may use, because they ask for a permission that does not exist."""
    return tuple(sorted(tool.name for tool in manifest.tools if level_of_tool(tool.required_permission) is None))


def unknown_fields(document: Mapping[str, Any]) -> list[str]:
    """Return the fields of an admitted document that we ignore, each kind once: `tools[].icon`. At most 20."""
    unknown = set(_extra("", ModuleManifest, document))
    for tool in document["tools"]:
        unknown.update(_extra("tools[].", ToolDefinition, tool))
        unknown.update(_extra("tools[].annotations.", ToolAnnotations, tool.get("annotations")))
        parameters = tool.get("parameters")
        for parameter in parameters if isinstance(parameters, list) else ():
            unknown.update(_extra("tools[].parameters[].", ToolParameter, parameter))
    return sorted(unknown)[:_MOST_FIELDS]


def _tool(offered: Any) -> Any:
    """Return the tool; closed, if only its name is good; what was offered, if not even that is."""
    if not isinstance(offered, dict):
        return offered
    try:
        return ToolDefinition.model_validate({name: _schema(name, value) for name, value in offered.items()})
    except ValidationError as exc:
        fault = _first_fault(exc, "its definition")
    try:
        return ToolDefinition.model_validate({"name": offered.get("name"), "required_permission": BROKEN + fault})
    except ValidationError:
        return offered


def _schema(name: str, value: Any) -> Any:
    """JSON Schema's short forms, `true` for anything and `false` for nothing, as objects."""
    return ({} if value else {"not": {}}) if name in _SCHEMAS and isinstance(value, bool) else value


def _check_tool_names(manifest: ModuleManifest) -> None:
    seen = set[str]()
    for tool in manifest.tools:
        for name in tool.names:
            if not _belongs_to(manifest.module_name, name):
                raise ManifestRefused(f"tool {_shown(name)} is not named '{manifest.module_name}.<method>'")
        if tool.name in seen:
            raise ManifestRefused(f"tool {_shown(tool.name)} is listed twice")
        seen.add(tool.name)


def _belongs_to(module: str, name: str) -> bool:
    try:
        return ToolName.parse(name).module == module
    except InvalidToolName:
        return False


def _first_fault(exc: ValidationError, what: str = "manifest") -> str:
    fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    others = f" (and {exc.error_count() - 1} more)" if exc.error_count() > 1 else ""
    return f"{what} is wrong at {'.'.join(str(step) for step in fault['loc'])}: {fault['msg']}{others}"


def _extra(place: str, model: type[BaseModel], document: Any) -> Iterator[str]:
    """Yield the unknown fields of `document`; none if it is no object, since its tool is closed anyway."""
    names: Mapping[str, Any] = document if isinstance(document, dict) else {}
    return (place + name[:_SHOWN] for name in names if name not in model.model_fields)


def _shown(text: str) -> str:
    return repr(text[:_SHOWN])


_SCHEMAS = frozenset({"input_schema", "output_schema"})
_SHOWN = 60  # characters of foreign text in a reason
_MOST_FIELDS = 20
