"""Makes function tools of the OpenAI Agents SDK of the fleet's, gives them to agents, and writes what their calls come to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from agents import Agent, FunctionTool, RunContextWrapper, Tool
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext

from toolfleet_registry.contracts import ResultFile, ToolDefinition, ToolResult
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_tasks.adapters.result_text import shown_parts

Output = str | Sequence[ToolOutputText | ToolOutputImage | ToolOutputFileContent]

TContext = TypeVar("TContext")

NO_CALL = "toolfleet-no-call"
"""An id that no call has: it is approved only where its tool is for good."""


@dataclass(frozen=True, slots=True)
class OfferedFunction:
    """One tool as a run is offered it."""

    tool: FunctionTool
    definition: ToolDefinition
    run_id: str
    ended: dict[str | None, ToolResult] = field(default_factory=dict)
    """By their keys: of calls that have ended before the SDK runs them."""


class RunTools(Protocol):
    """The fleet's tools for one run after the other: `FleetTools`."""

    async def of(self, run: RunContextWrapper[Any]) -> list[FunctionTool]:
        """Return the tools the run's caller may use now."""
        ...


@dataclass
class FleetAgent(Agent[TContext]):
    """An agent with the fleet's tools in addition to its own: `FleetAgent(name="…", fleet_tools=FleetTools(fleet, caller))`."""

    fleet_tools: RunTools | None = None
    """What it has of the fleet; `None` for nothing."""

    async def get_all_tools(self, run_context: RunContextWrapper[TContext]) -> list[Tool]:
        """Return the tools as `Agent` does, with the fleet's tools at this turn."""
        own = await super().get_all_tools(run_context)
        return own if self.fleet_tools is None else [*own, *await self.fleet_tools.of(run_context)]


def function_tool_of(definition: ToolDefinition, name: str) -> FunctionTool:
    """Return the tool under the name shown to models; its behaviour is set by the caller."""
    return FunctionTool(
        name=name,
        description=definition.description,
        params_json_schema=input_schema(definition),
        on_invoke_tool=_nothing,
        strict_json_schema=False,  # else the schema is rewritten in place
    )


def shown_output(result: ToolResult) -> Output:
    """The SDK repeats no call, and has no mark for a failure: its text says all."""
    text, files = shown_parts(result)
    return [ToolOutputText(text=text), *map(_part, files)] if files else text


async def _nothing(run: ToolContext[Any], arguments: str) -> str:
    raise NotImplementedError


def _part(file: ResultFile) -> ToolOutputImage | ToolOutputFileContent:
    url = f"data:{file.media_type};base64,{file.data}"
    if file.kind == "image":
        return ToolOutputImage(image_url=url)
    return ToolOutputFileContent(file_data=url, filename=file.name or "file.pdf")
