"""Exports tools that a model calls by a tag in its text, and functions that workers run: `from toolfleet.tags import TagRegistry, ToolDef, parse_response`."""

from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.errors import ToolNotFound, ToolRateLimited
from toolfleet_registry.functions.files import Audio, File, Image
from toolfleet_registry.local.local_function import local_tool
from toolfleet_registry.tags import ParsedResponse, TagCall, TagResult, ToolContext, ToolDef, parse_response
from toolfleet_tasks.client.tags import TagRegistry

__all__ = [
    "Audio",
    "Context",
    "File",
    "Image",
    "ParsedResponse",
    "TagCall",
    "TagRegistry",
    "TagResult",
    "ToolContext",
    "ToolDef",
    "ToolNotFound",
    "ToolRateLimited",
    "local_tool",
    "parse_response",
]
