"""Writes the fleet's tools, and what their calls come to, as Claude's agent SDK takes them."""

from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.server import ServerRequestContext

from toolfleet_registry.contracts import ToolDefinition, ToolResult
from toolfleet_registry.contracts.progress import Progress
from toolfleet_registry.formats import convert, from_result
from toolfleet_tasks.adapters.decisions import WaitsForApproval
from toolfleet_tasks.adapters.deferrals import DeferredStep, StillRunning
from toolfleet_tasks.adapters.result_text import result_text
from toolfleet_tasks.messages.following_tools import RUNNING, running_text

_MOST_SHOWN = "anthropic/maxResultSizeChars"
_LEAST_STEP = 0.001  # the protocol has progress grow each time


def offered(tool: ToolDefinition, most_characters: int | None) -> types.Tool:
    """A tool as a server lists it."""
    (offer,) = convert([tool], "mcp")
    meta = {} if most_characters is None else {"_meta": {_MOST_SHOWN: most_characters}}
    return types.Tool.model_validate({**offer, **meta})


def reporter(ctx: ServerRequestContext[Any, Any]) -> Callable[[Progress], Awaitable[None]]:
    """What tells a session how far its call is."""
    last = 0.0

    async def report(progress: Progress) -> None:
        nonlocal last
        last = max(progress.fraction or 0.0, last + _LEAST_STEP)
        await ctx.session.report_progress(last, 1.0, progress.message)

    return report


async def answer(asked: Awaitable[ToolResult | str]) -> types.CallToolResult:
    """What Claude is told, once it is there: a call's end, a sentence, or that the call goes on."""
    try:
        said = await asked
    except StillRunning as running:
        return _still_running(running.step)
    except WaitsForApproval as waits:
        return result_shown(waits.result())
    if isinstance(said, str):
        return types.CallToolResult(content=[types.TextContent(text=said)])
    return result_shown(said)


def result_shown(result: ToolResult) -> types.CallToolResult:
    """The end of a call."""
    if not result.success:
        return types.CallToolResult(content=[types.TextContent(text=result_text(result))], is_error=True)
    return types.CallToolResult.model_validate(from_result(result, "mcp", None))


def _still_running(step: DeferredStep) -> types.CallToolResult:
    """Marked as an error: any other result would be held to the tool's output schema."""
    text = types.TextContent(text=running_text(step.tool_name, step.call_id))
    meta = {RUNNING: True, **step.to_json()}
    return types.CallToolResult.model_validate({"content": [text], "isError": True, "_meta": meta})
