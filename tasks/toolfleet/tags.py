"""Tools that a model calls by a tag in its text: `from toolfleet.tags import TagRegistry, ToolDef, parse_response`."""

from toolfleet_registry.errors import ToolNotFound, ToolRateLimited
from toolfleet_registry.local_function import local_tool
from toolfleet_registry.tag_parsing import ParsedResponse, TagCall, parse_response
from toolfleet_registry.tags import TagResult, ToolContext, ToolDef
from toolfleet_tasks.tagging import TagRegistry

__all__ = [
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
