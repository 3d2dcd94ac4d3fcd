"""Writes tools as model providers take them, and reads their answers back as calls."""

from toolfleet_registry.formats import (
    Converted,
    Format,
    Note,
    SearchRequest,
    ToolsOnDemand,
    call_from_openai,
    convert,
    from_result,
    to_call,
    tools_to_openai_format,
)

__all__ = [
    "Converted",
    "Format",
    "Note",
    "SearchRequest",
    "ToolsOnDemand",
    "call_from_openai",
    "convert",
    "from_result",
    "to_call",
    "tools_to_openai_format",
]
