"""Offers the fleet's tools to Claude's agent SDK, as an MCP server in the agent's own process, and as a hook that defers long calls."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol, TypedDict

import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server

from toolfleet_registry.contracts import Caller, Conversation, ToolDefinition, ToolResult
from toolfleet_registry.contracts.call_context import Progress
from toolfleet_registry.contracts.jobs import Poll
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.formats import convert, from_result
from toolfleet_registry.formats.on_demand import SEARCH_TOOL
from toolfleet_tasks.adapters.calling import (
    AdapterCalls,
    DeferredStep,
    FrameworkCall,
    Loading,
    StillRunning,
    ToolLoading,
    ToolOffers,
    WaitsForApproval,
    gone_tool,
    no_such_tool,
    result_text,
)
from toolfleet_tasks.calls.begun_calls import Owner
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.messages.fleet_results import (
    CANCEL_TOOL,
    FOLLOWING_TOOLS,
    NO_ANSWER,
    OF_SOMEBODY_ELSE,
    RUNNING,
    STATUS_TOOL,
    UNKNOWN_CALL,
    WAIT_TOOL,
    WRONG_ARGUMENTS,
    asked_of,
    running_text,
    state_text,
)

Asking = ServerRequestContext[Any, Any]

_CALL_ID = "claudecode/toolUseId"
_LONGEST_WAIT_SECONDS = 20.0  # of `call_wait`, where `defer_after` says nothing
_MOST_ENDED = 64  # results that wait for Claude Code's own call, which people may deny
_DEFERRED: Mapping[str, Any] = {
    "hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "defer"},
}

_MOST_SHOWN = "anthropic/maxResultSizeChars"
_FIRST = "anthropic/alwaysLoad"
_LEAST_STEP = 0.001  # the protocol has progress grow each time


class FleetServer(TypedDict):
    """A value for `ClaudeAgentOptions(mcp_servers={"toolfleet": …})`: the SDK's `McpSdkServerConfig`."""

    type: Literal["sdk"]
    """That it runs in the agent's own process."""
    name: str
    """What the names of its tools begin with: `mcp__NAME__`."""
    instance: Server[Any]
    """The server, of the official SDK for the protocol."""


class DeferredUse(Protocol):
    """A call that has ended its session's run: the SDK's `ResultMessage.deferred_tool_use`."""

    id: str
    name: str
    input: dict[str, Any]


class FleetSession:
    """The fleet's tools for one session of Claude's agent SDK, which can end with a call that is under way, and be resumed.

    `server` is a value for `mcp_servers`, `hook` one for `PreToolUse` of the tools that `matcher` names. The hook makes
    a call before Claude Code does, and ends the session's run if the call is deferred. The session that is resumed runs
    it again, in any process. Claude Code defers no call together with others: Claude is told that these continue.

    Args:
        fleet: The fleet; it must be open.
        caller: The user and the rights that calls are made with; they decide which tools are offered.
        name: The server's name in `mcp_servers`.
        conversation: The conversation that calls belong to.
        run_id: A part of the calls' keys, for models that restart their count of calls; by default Claude's ids are the
            keys.
        timeout: Seconds until a call has ended; by default as of `ToolFleet.call`.
        defer_after: Seconds after which a call that continues ends the session's run; by default none does.
        defer_approvals: Whether a call that waits for an approval ends the session's run.
        jobs: Tools whose calls are jobs, which end the session's run at once: by a poll, or with `None` by their own
            end.
        most_characters: How long a result may be that the model is shown whole; Claude Code keeps a longer one in a
            file.
        where: Tells which tools are offered; by default all that the caller may use.
        load: How the tools reach the model: `"all"` (as Claude Code decides), `"native"` or `"search"`, as in the guide to
            tools on demand.
        always: Tells which tools are in each request as they are; by default none.

    Raises:
        ValueError: There is no such `load`.

    """

    def __init__(
        self,
        fleet: ToolFleet,
        caller: Caller,
        *,
        name: str = "toolfleet",
        conversation: Conversation | None = None,
        run_id: str | None = None,
        timeout: float | None = None,
        defer_after: float | None = None,
        defer_approvals: bool = False,
        jobs: Mapping[str, Poll | None] | None = None,
        most_characters: int | None = None,
        where: Callable[[ToolDefinition], bool] | None = None,
        load: Loading = "all",
        always: Callable[[ToolDefinition], bool] | None = None,
    ) -> None:
        self._calls = AdapterCalls(
            fleet, timeout=timeout, defer_after=defer_after, defer_approvals=defer_approvals, jobs=jobs
        )
        self._caller, self._conversation, self._run_id = caller, conversation, run_id
        self._loading = ToolLoading(fleet, load, always, where)
        self._defers = None if load == "all" else self._loading.defers
        self._offers, self._previews = ToolOffers(fleet.tools, self._offered, where), fleet.artifacts.are_kept
        self._most_characters = most_characters
        self._following = FollowingTools(fleet, self._calls, caller, defer_after or _LONGEST_WAIT_SECONDS)
        self._own = FOLLOWING_TOOLS if self._calls.is_deferring else {}
        self._ended: dict[str | None, ToolResult] = {}  # by their keys: of calls that the hook has made
        self._prefix = f"mcp__{name}__"
        self.matcher = f"{self._prefix}.*"
        instance: Server[Any] = Server(name, on_list_tools=self._list, on_call_tool=self._call)
        self.server = FleetServer(type="sdk", name=name, instance=instance)

    async def hook(self, given: Mapping[str, Any], tool_use_id: str | None, _: object = None) -> dict[str, Any]:
        """Defer a call that continues. Nothing is said about any other one: its end is kept for the call that follows.

        Args:
            given: The hook's input, as the SDK gives it.
            tool_use_id: Claude's id of the call.

        Returns:
            The hook's output; empty unless the call is deferred.

        """
        name = str(given.get("tool_name", ""))
        asked = await self._asked(name, given.get("tool_input"), tool_use_id)
        if asked is None or not (self._calls.is_deferring and tool_use_id):
            return {}
        try:
            result = await self._calls.call(asked)
        except (StillRunning, WaitsForApproval):
            return dict(_DEFERRED)
        while len(self._ended) >= _MOST_ENDED:
            self._ended.pop(next(iter(self._ended)))
        self._ended[asked.key] = result
        return {}

    async def is_over(self, use: DeferredUse, *, wait: float | None = None) -> bool:
        """Wait for the end of a deferred call, after which its session can be resumed.

        Args:
            use: The call: `ResultMessage.deferred_tool_use`.
            wait: Seconds to wait at most; `None`: without a limit.

        Returns:
            Whether it has ended: false for a call that waits for an approval, true for one that the fleet no longer
            knows.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        asked = await self._asked(use.name, use.input, use.id)
        step = None if asked is None else await self._calls.step_before(asked)
        if asked is None or step is None:
            return True
        try:
            await self._calls.resumed(step, asked, patience=wait)
        except (StillRunning, WaitsForApproval):
            return False
        return True

    async def deferred(self, use: DeferredUse) -> dict[str, Any] | None:
        """Read the fleet's ids of a deferred call.

        Args:
            use: The call: `ResultMessage.deferred_tool_use`.

        Returns:
            Its `kind` and `toolfleet_call_id`, which is the job's id if it is a job; `None` if it is not the fleet's.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        asked = await self._asked(use.name, use.input, use.id)
        step = None if asked is None else await self._calls.step_before(asked)
        return None if step is None else step.to_json()

    async def _asked(self, name: str, arguments: Any, call_id: str | None) -> FrameworkCall | None:
        meant = (await self._loading.of(self._caller)).called(name.removeprefix(self._prefix), arguments or {})
        tool, name = meant.spoken.tool, meant.spoken.name
        named = tool or gone_tool(name.replace("__", ".")), name, meant.arguments, self._caller, self._run_id, call_id
        asked = FrameworkCall(*named, self._conversation)
        return None if tool is None and await self._calls.step_before(asked) is None else asked

    def _offered(self, tool: ToolDefinition, _: str) -> types.Tool:
        first = None if self._defers is None else not self._defers(tool)
        return offered(tool, self._most_characters, is_first=first, previews=self._previews)

    async def _list(self, _: Asking, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        listing, offers = await self._loading.of(self._caller), await self._offers.of(self._caller)
        meta = {_FIRST: True} if self._most_characters is None else {_FIRST: True, _MOST_SHOWN: self._most_characters}
        listed = [types.Tool.model_validate({**own, "_meta": meta}) for own in listing.own()]
        is_whole = listing.load != "search"
        listed += [offer for name, offer in offers.items() if is_whole or name in listing.shown]
        return types.ListToolsResult(tools=[*listed, *map(types.Tool.model_validate, self._own.values())])

    async def _call(self, ctx: Asking, params: types.CallToolRequestParams) -> types.CallToolResult:
        listing = await self._loading.of(self._caller)
        if params.name in self._own and params.name not in listing.tools:
            return await answer(self._following.run(params.name, params.arguments or {}))
        if listing.load != "all" and params.name == SEARCH_TOOL:
            return await answer(self._loading.answer(params.arguments, self._caller))
        call_id: object = {**ctx.meta}.get(_CALL_ID) if ctx.meta else None
        asked = await self._asked(params.name, params.arguments, call_id if isinstance(call_id, str) else None)
        if asked is None:
            said = listing.called(params.name, params.arguments).spoken.name
            return _result_shown(no_such_tool(said, listing.tools.values()))
        asked = replace(asked, on_progress=_reporter(ctx))
        ended = [self._ended.pop(key) for key in asked.keys.values() if key in self._ended]
        return _result_shown(ended[0]) if ended else await answer(self._calls.call(asked))


def fleet_server(
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
    load: Loading = "all",
    always: Callable[[ToolDefinition], bool] | None = None,
) -> FleetServer:
    """Make a server with the tools that a caller may use; `allowed_tools=["mcp__toolfleet"]` lets a session call all of them.

    The keys of calls are Claude's own ids of them, which no two sessions share. A call that Claude Code gives up is
    cancelled.

    With `defer_after` or `jobs`, Claude is told that a call continues, with its id. It asks for such calls with
    `call_status`, `call_wait` and `call_cancel`, and a repeat under Claude's id of the call returns its end.

    Args:
        fleet: The fleet; it must be open.
        caller: The user and the rights that calls are made with; they decide which tools are offered.
        name: The server's name in `mcp_servers`.
        conversation: The conversation that calls belong to.
        run_id: A part of the calls' keys, for models that restart their count of calls; by default Claude's ids are the
            keys.
        timeout: Seconds until a call has ended; by default as of `ToolFleet.call`.
        defer_after: Seconds after which Claude is told that a call continues; by default a call's end is waited for.
        jobs: Tools whose calls are jobs, which continue at once: by a poll, or with `None` by their own end.
        most_characters: How long a result may be that the model is shown whole; Claude Code keeps a longer one in a
            file.
        where: Tells which tools are offered; by default all that the caller may use.
        load: How the tools reach the model: `"all"` (as Claude Code decides), `"native"` or `"search"`, as in the guide to
            tools on demand.
        always: Tells which tools are in each request as they are; by default none.

    Returns:
        A value for `ClaudeAgentOptions(mcp_servers={"toolfleet": …})`.

    Raises:
        ValueError: There is no such `load`.

    """
    session = FleetSession(
        fleet,
        caller,
        name=name,
        conversation=conversation,
        run_id=run_id,
        timeout=timeout,
        defer_after=defer_after,
        jobs=jobs,
        most_characters=most_characters,
        where=where,
        load=load,
        always=always,
    )
    return session.server


def offered(
    tool: ToolDefinition, most_characters: int | None, *, is_first: bool | None = None, previews: bool = False
) -> types.Tool:
    """Return a tool as a server lists it. `is_first`: whether Claude reads it without a search; `None`: Claude Code decides."""
    (offer,) = convert([tool], "mcp", previews=previews)
    said = {_MOST_SHOWN: most_characters, _FIRST: is_first}
    meta = {name: value for name, value in said.items() if value is not None}
    return types.Tool.model_validate({**offer, "_meta": {**offer.get("_meta", {}), **meta}} if meta else offer)


def _reporter(ctx: ServerRequestContext[Any, Any]) -> Callable[[Progress], Awaitable[None]]:
    """Return a function that reports a call's progress to its session."""
    last = 0.0

    async def report(progress: Progress) -> None:
        nonlocal last
        last = max(progress.fraction or 0.0, last + _LEAST_STEP)
        await ctx.session.report_progress(last, 1.0, progress.message)

    return report


async def answer(asked: Awaitable[ToolResult | str]) -> types.CallToolResult:
    """Await the answer for Claude: a call's result, a sentence, or that the call continues."""
    try:
        said = await asked
    except StillRunning as running:
        return _still_running(running.step)
    except WaitsForApproval as waits:
        return _result_shown(waits.result())
    if isinstance(said, str):
        return types.CallToolResult(content=[types.TextContent(text=said)])
    return _result_shown(said)


def _result_shown(result: ToolResult) -> types.CallToolResult:
    """Return the end of a call, as Claude is shown it."""
    if not result.success:
        return types.CallToolResult(content=[types.TextContent(text=result_text(result))], is_error=True)
    return types.CallToolResult.model_validate(from_result(result, "mcp", None))


def _still_running(step: DeferredStep) -> types.CallToolResult:
    """Return that a call continues, marked as an error: any other result would have to fit the tool's output schema."""
    text = types.TextContent(text=running_text(step.tool_name, step.call_id))
    meta = {RUNNING: True, **step.to_json()}
    return types.CallToolResult.model_validate({"content": [text], "isError": True, "_meta": meta})


class FollowingTools:
    """The tools for calls and jobs of one caller that continue.

    `longest` is how many seconds one of them waits at most.
    """

    def __init__(self, fleet: ToolFleet, calls: AdapterCalls, caller: Caller, longest: float) -> None:
        self._fleet = fleet
        self._calls = calls
        self._caller = caller
        self._longest = longest

    async def run(self, name: str, arguments: Mapping[str, Any]) -> str | ToolResult:
        """Answer one of `FOLLOWING_TOOLS` with a sentence, or with the end of the call.

        Raises `StillRunning` if the call continues.
        """
        if (asked := asked_of(arguments, self._longest)) is None:
            return WRONG_ARGUMENTS
        answers = {STATUS_TOOL: self._state, WAIT_TOOL: self._end, CANCEL_TOOL: self._cancelled}
        try:
            return await answers[name](*asked)
        except FleetUnavailable:
            return NO_ANSWER

    async def _state(self, call_id: str, _: float) -> str | ToolResult:
        handle = await self._fleet.begun_calls.attach(call_id, Owner(self._caller.user_id))
        if handle is not None:
            status = await handle.status()
            handle.leave()
            return state_text(handle.tool_name, call_id, str(status))
        job = await self._fleet.jobs.get(call_id, self._caller)
        return UNKNOWN_CALL if job is None else state_text(job.tool_name or "", call_id, job.state)

    async def _end(self, call_id: str, seconds: float) -> str | ToolResult:
        step = await self._step(call_id)
        return UNKNOWN_CALL if step is None else await self._calls.result_of(step, self._caller, patience=seconds)

    async def _cancelled(self, call_id: str, _: float) -> str | ToolResult:
        """Cancel the call and return its end, which may have come before the cancellation."""
        handle = await self._fleet.begun_calls.attach(call_id, Owner(self._caller.user_id))
        if handle is None:
            job = await self._fleet.jobs.cancel(call_id, self._caller)
            return UNKNOWN_CALL if job is None else await self._end(call_id, 0)
        try:
            result = await handle.end_within(0)
            if result is None and handle.is_guest:
                return OF_SOMEBODY_ELSE
            await handle.cancel()
            result = await handle.end_within(0)
        finally:
            handle.leave()
        if result is None:
            raise StillRunning(DeferredStep(call_id, handle.tool_name))
        return result

    async def _step(self, call_id: str) -> DeferredStep | None:
        handle = await self._fleet.begun_calls.attach(call_id, Owner(self._caller.user_id))
        if handle is not None:
            handle.leave()
            return DeferredStep(call_id, handle.tool_name)
        job = await self._fleet.jobs.get(call_id, self._caller)
        return None if job is None else DeferredStep(call_id, job.tool_name or "", "job")
