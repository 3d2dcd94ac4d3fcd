"""Makes function tools of the OpenAI Agents SDK of the fleet's, and writes what their calls come to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agents import FunctionTool
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext

from toolfleet_registry.contracts import ResultFile, ToolDefinition, ToolResult
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_tasks.adapters.result_text import shown_parts

Output = str | Sequence[ToolOutputText | ToolOutputImage | ToolOutputFileContent]

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
