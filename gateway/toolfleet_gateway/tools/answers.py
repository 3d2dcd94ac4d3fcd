"""Describes what is answered about tools."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.load_errors import ToolLoadError
from toolfleet_registry.contracts.tool_definition import ToolSource

PROGRAMMATIC = "programmatic"
"""The source of a tool that stands in no file of a tool folder."""


class ShownTool(ToolDefinition):
    """A tool as its module describes it, and where it stands."""

    source: str
    """The file that it stands in, on its host's machine; `programmatic` for others."""
    module: str
    """What that file is imported as there; of others, the module that they belong to."""


class FormatNote(BaseModel):
    """What a model provider does not see of a tool as it is."""

    model_config = ConfigDict(frozen=True, from_attributes=True, use_attribute_docstrings=True)

    tool: str
    """The tool's name; empty: of all."""
    path: str
    """A JSON pointer into the arguments' schema, or `name`, `description`, `strict`, `tools`."""
    kind: str
    """What was done about it."""
    why: str
    """The reason, in words."""


class ToolPage(BaseModel):
    """Some of the tools that a caller may use."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tools: list[ShownTool | dict[str, Any]]
    """By name; of a search, the best first. With a `format` what goes into the `tools` of a request to that provider, by name."""
    count: int
    """How many tools there are on all pages."""
    next: str | None = None
    """The `cursor` of the next page, if there is one."""
    notes: list[FormatNote] | None = None
    """What the provider does not see as it is, with a `format`."""


class ShownLoadError(ToolLoadError):
    """Why a file is not served as it stands, and of which module it is."""

    module: str
    """The module that serves the file's folder."""


class LoadErrorList(BaseModel):
    """What is not served as it stands."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    errors: list[ShownLoadError]
    """By module, and as its host tells them."""
    count: int
    """How many there are."""


class ReloadReport(BaseModel):
    """What came of a reload."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    count: int
    """How many tools the hosts serve that are done."""
    errors: list[ShownLoadError]
    """What these do not serve as it stands."""
    hosts: int
    """How many hosts have answered."""
    pending: list[str]
    """The modules of hosts that are still at it."""


def shown_tool(tool: ToolDefinition, place: ToolSource | None) -> ShownTool:
    """The tool with its place, if it has one."""
    source = PROGRAMMATIC if place is None else place.file
    module = tool.name.partition(".")[0] if place is None else place.python_module
    # Judged already: to validate each again would be most of a listing's time.
    return ShownTool.model_construct(
        tool.model_fields_set | {"source", "module"}, **dict(tool), source=source, module=module
    )
