"""Searches the tools that an agent holds by words and tags."""

from collections.abc import Iterable, Mapping
from typing import Any

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.manifests.overrides import SeenTool
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.searching.index import SearchDocument, TextIndex


class ToolSearch(TextIndex[SeenTool]):
    """An index of tools as they are in effect."""

    def __init__(self, tools: Iterable[SeenTool]) -> None:
        super().__init__((_document(tool.definition), tool) for tool in tools)


def _document(tool: ToolDefinition) -> SearchDocument:
    properties: Any = input_schema(tool).get("properties")
    arguments: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
    return SearchDocument(tool.name, tool.tags, tool.description, arguments)
