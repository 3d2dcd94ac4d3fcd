"""Offers the fleet's tools to Claude's agent SDK, as an MCP server in the agent's own process."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypedDict

import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server

from toolfleet_registry.contracts import Caller, Conversation, ToolDefinition, ToolResult
from toolfleet_registry.contracts.jobs import Poll
from toolfleet_registry.contracts.progress import Progress
from toolfleet_registry.formats import convert, from_result
from toolfleet_tasks.adapters.call_tools import FollowingTools
from toolfleet_tasks.adapters.calling import AdapterCalls
from toolfleet_tasks.adapters.deferrals import DeferredStep, StillRunning
from toolfleet_tasks.adapters.framework_call import FrameworkCall, no_such_tool
from toolfleet_tasks.adapters.offers import ToolOffers
from toolfleet_tasks.adapters.result_text import result_text
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.messages.following_tools import FOLLOWING_TOOLS, RUNNING, running_text

Asking = ServerRequestContext[Any, Any]

_CALL_ID = "claudecode/toolUseId"
_MOST_SHOWN = "anthropic/maxResultSizeChars"
_LONGEST_WAIT_SECONDS = 20.0  # of `call_wait`, where `defer_after` says nothing
_LEAST_STEP = 0.001  # the protocol has progress grow each time


class FleetServer(TypedDict):
    """What `ClaudeAgentOptions(mcp_servers={"toolfleet": …})` takes: the SDK's `McpSdkServerConfig`."""

    type: Literal["sdk"]
    """That it runs in the agent's own process."""
    name: str
    """What the names of its tools begin with: `mcp__NAME__`."""
    instance: Server[Any]
    """The server, of the official SDK for the protocol."""


def fleet_server(  # noqa: PLR0913 - what may be said of an agent's calls
    fleet: ToolFleet,
    caller: Caller,
    *,
    name: str = "toolfleet",
    conversation: Conversation | None = None,
    run_id: str | None = None,
    timeout: float | None = None,
    defer_after: float | None = None,
    jobs: Mapping[str, Poll | None] | None = None,
    most_characters: int | None = None,
    where: Callable[[ToolDefinition], bool] | None = None,
) -> FleetServer:
    """A server with the tools that `caller` may use; `allowed_tools=["mcp__toolfleet"]` lets a session call all of them.

    The keys of calls are Claude's own ids of them, which no two sessions share; `run_id` is for models that count theirs anew.
    `timeout`: seconds for a call. `most_characters`: of a result that is shown to the model in whole; a longer one is kept in
    a file by Claude Code. `where` says which tools are offered. A call that Claude Code gives up is taken back.

    With `defer_after` Claude is told of a call that takes more seconds that it goes on, and its id, and so at once of calls of the
    tools in `jobs`, which are jobs, by a poll or with `None` by their own end. It asks for them with `call_status`, `call_wait`
    and `call_cancel`, and a repeat under Claude's id of the call has its end.
    """
    made = AdapterCalls(fleet, timeout=timeout, defer_after=defer_after, jobs=jobs)
    calls = _ServedCalls(made, caller, conversation, run_id)
    following = FollowingTools(fleet, made, caller, defer_after or _LONGEST_WAIT_SECONDS)
    own = FOLLOWING_TOOLS if made.is_deferring else {}
    offers = ToolOffers(fleet, lambda tool, _: (tool, _offered(tool, most_characters)), where)

    async def list_tools(_: Asking, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        listed = [offer for _, offer in (await offers.of(caller)).values()]
        return types.ListToolsResult(tools=[*listed, *map(types.Tool.model_validate, own.values())])

    async def call_tool(ctx: Asking, params: types.CallToolRequestParams) -> types.CallToolResult:
        listed = await offers.of(caller)
        if params.name in own and params.name not in listed:
            return await _answer(following.run(params.name, params.arguments or {}))
        if params.name not in listed:
            return _shown(no_such_tool(params.name, [tool for tool, _ in listed.values()]))
        return await _answer(calls.call(listed[params.name][0], params, ctx))

    server: Server[Any] = Server(name, on_list_tools=list_tools, on_call_tool=call_tool)
    return FleetServer(type="sdk", name=name, instance=server)


class _ServedCalls:
    """Makes the calls of one server."""

    def __init__(
        self,
        calls: AdapterCalls,
        caller: Caller,
        conversation: Conversation | None,
        run_id: str | None,
    ) -> None:
        self._calls = calls
        self._caller = caller
        self._conversation = conversation
        self._run_id = run_id

    async def call(self, tool: ToolDefinition, params: types.CallToolRequestParams, ctx: Asking) -> ToolResult:
        call_id: object = {**ctx.meta}.get(_CALL_ID) if ctx.meta else None
        asked = FrameworkCall(
            tool,
            params.name,
            params.arguments or {},
            self._caller,
            self._run_id,
            call_id if isinstance(call_id, str) else None,
            self._conversation,
            on_progress=_reporter(ctx),
        )
        return await self._calls.call(asked)


def _offered(tool: ToolDefinition, most_characters: int | None) -> types.Tool:
    (offer,) = convert([tool], "mcp")
    meta = {} if most_characters is None else {"_meta": {_MOST_SHOWN: most_characters}}
    return types.Tool.model_validate({**offer, **meta})


def _reporter(ctx: Asking) -> Callable[[Progress], Awaitable[None]]:
    last = 0.0

    async def report(progress: Progress) -> None:
        nonlocal last
        last = max(progress.fraction or 0.0, last + _LEAST_STEP)
        await ctx.session.report_progress(last, 1.0, progress.message)

    return report


async def _answer(asked: Awaitable[ToolResult | str]) -> types.CallToolResult:
    try:
        answer = await asked
    except StillRunning as running:
        return _still_running(running.step)
    if isinstance(answer, str):
        return types.CallToolResult(content=[types.TextContent(text=answer)])
    return _shown(answer)


def _still_running(step: DeferredStep) -> types.CallToolResult:
    """Marked as an error: any other result would be held to the tool's output schema."""
    text = types.TextContent(text=running_text(step.tool_name, step.call_id))
    meta = {RUNNING: True, **step.to_json()}
    return types.CallToolResult.model_validate({"content": [text], "isError": True, "_meta": meta})


def _shown(result: ToolResult) -> types.CallToolResult:
    if not result.success:
        return types.CallToolResult(content=[types.TextContent(text=result_text(result))], is_error=True)
    return types.CallToolResult.model_validate(from_result(result, "mcp", None))
