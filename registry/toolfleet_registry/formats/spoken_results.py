"""Says why a call has failed in the names that the model's provider uses: a model can call, and correct, no others."""

import re
from collections.abc import Mapping
from typing import cast

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.contracts.spoken_names import Spoken
from toolfleet_registry.contracts.tool_definition import ToolDefinition
from toolfleet_registry.formats.dialects import Format, dialect_of
from toolfleet_registry.formats.schemas.notes import Notes
from toolfleet_registry.formats.schemas.references import localized
from toolfleet_registry.formats.schemas.relaxing import renamed_properties
from toolfleet_registry.formats.schemas.roots import rooted
from toolfleet_registry.formats.tool_names import offered_name
from toolfleet_registry.schemas.definition import input_schema

_NO_SUCH_TOOL = frozenset({"invalid_tool_name", "unknown_module", "unknown_tool"})
_MOST_SHOWN = 256  # characters of a name that does not exist


def as_spoken(result: ToolResult, spoken: Spoken) -> ToolResult:
    """The result, with `error` and `hint` in the names under which the model was offered its tools and arguments.

    Nothing else changes: not the `tool_name`, nor the code. A success, and what no model has asked for, is as it was.
    """
    if result.success or not spoken.format:
        return result
    if spoken.tool is None:
        return _of_no_tool(result, spoken) if result.error_code in _NO_SUCH_TOOL else result
    error, hint = (_named(text, spoken.tool, spoken.name) for text in (result.error, result.hint))
    if result.error_code == "unknown_tool":  # it has gone meanwhile; what is there is named as the catalog names it
        hint = _all_named(hint, ToolName.parse(spoken.tool.name).module, cast("Format", spoken.format))
    if result.error_code == "invalid_arguments" and error:
        for own, shown in _renamed(spoken.tool, cast("Format", spoken.format)).items():
            error = error.replace(own, shown)
    return result.model_copy(update={"error": error, "hint": hint})


def _of_no_tool(result: ToolResult, spoken: Spoken) -> ToolResult:
    if not spoken.name:
        return result.model_copy(update={"error": "The call names no tool."})
    shown = spoken.name if len(spoken.name) <= _MOST_SHOWN else f"{spoken.name[:_MOST_SHOWN]}…"
    shown = shown.encode("utf-8", "replace").decode()  # a model can write half a character, and no output can
    meant = f"; did you mean {' or '.join(spoken.near)}?" if spoken.near else "."
    return result.model_copy(update={"error": f"No tool {shown}{meant}"})


def _named(text: str | None, tool: ToolDefinition, name: str) -> str | None:
    if text is None or tool.name not in text:
        return text
    return re.sub(rf"(?<![\w.-]){re.escape(tool.name)}(?![\w-]|\.\w)", lambda _: name, text)


def _all_named(text: str | None, module: str, format: Format) -> str | None:  # noqa: A002 - the face's word
    """The text with all tools of the module under their offered names."""
    if text is None:
        return None
    return re.sub(rf"(?<![\w.-]){re.escape(module)}\.[\w-]+(\.[\w-]+)*", lambda m: offered_name(m[0], format), text)


def _renamed(tool: ToolDefinition, format: Format) -> Mapping[str, str]:  # noqa: A002 - as above
    """The arguments that the provider was shown under other names; the longest first, as one may be in another."""
    legal = dialect_of(format).property_name
    if legal is None:
        return {}
    found = renamed_properties(rooted(localized(input_schema(tool)), Notes(tool.name)), legal)
    return {own: found[own] for own in sorted(found, key=len, reverse=True)}
