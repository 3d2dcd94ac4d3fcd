"""Offers the fleet's tools to Pydantic AI's agents, as a toolset, and reads what people have decided about its calls."""

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic_ai import (
    AbstractToolset,
    ApprovalRequired,
    BinaryContent,
    CallDeferred,
    CustomEvent,
    ModelMessage,
    ModelResponse,
    RunContext,
    ToolApproved,
    ToolCallPart,
    ToolDenied,
    ToolReturn,
)
from pydantic_ai.exceptions import ToolFailed, UsageLimitExceeded
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults
from pydantic_ai.tools import ToolDefinition as OfferedTool
from pydantic_ai.toolsets import ToolsetTool
from pydantic_core import from_json

from toolfleet_registry.contracts import Caller, Conversation, ToolDefinition, ToolResult
from toolfleet_registry.contracts.call_context import Progress
from toolfleet_registry.contracts.jobs import Poll
from toolfleet_registry.formats.calls import field_of, spoken_arguments
from toolfleet_registry.formats.on_demand import CALL_TOOL, SEARCH_TOOL
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.specs import effect_of
from toolfleet_registry.system import machine_clock
from toolfleet_tasks.adapters.calling import (
    APPROVAL,
    CALL,
    RUN,
    AdapterCalls,
    Decision,
    DeferredStep,
    FrameworkCall,
    Loading,
    StillRunning,
    ToolLoading,
    ToolOffers,
    WaitsForApproval,
    call_key,
    caller_of,
    conversation_of,
    in_run,
    inner_arguments,
    no_such_tool,
    result_text,
    shown_parts,
)
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.client.fleet import ToolFleet

_WAITS = "toolfleet_waits"  # it is undecided, or still runs: the resumed run only asks again
_IS_INNER = "toolfleet_is_inner"  # it was made by `call_tool`, which other toolsets may rename
_FIND_TOOL = "find_tools"
_NOT_EDITED = f"An edited call of {CALL_TOOL} has the same 'name', and an object as 'arguments'."


@dataclass(kw_only=True)
class ToolProgress(CustomEvent):
    """The progress of a call, in the run's stream of events."""

    fraction: float | None
    """How much of the work is done, from 0 to 1; `None` if it is unknown."""
    message: str
    """What is going on."""


def asked_by(ctx: RunContext[Any], name: str, arguments: Any) -> tuple[str | None, Any]:
    """Return the run whose model has asked for the call, and the model's arguments.

    A resumed run has another id, and people may edit the arguments. The message has the tool's name as other toolsets
    have changed it; or it is a call of another tool, which calls this one.
    """
    is_deferred = DeferredStep.of(ctx.tool_call_metadata or {}) is not None
    for message in reversed(ctx.messages):
        for part in message.parts if isinstance(message, ModelResponse) else ():
            if isinstance(part, ToolCallPart) and part.tool_call_id == ctx.tool_call_id:
                is_own = is_deferred or is_called([part], name)
                asked = spoken_arguments(part.args) if is_own and ctx.tool_call_approved else arguments
                return message.run_id or ctx.run_id, asked
    return ctx.run_id, arguments


def is_called(calls: Iterable[ToolCallPart], name: str) -> bool:
    """Return whether one of the calls is of the tool `name`, before which another toolset may have put a prefix."""
    return any(call.tool_name == name or call.tool_name.endswith(f"_{name}") for call in calls)


def open_calls(messages: Sequence[ModelMessage]) -> list[ToolCallPart]:
    """Return the calls that have no end yet: with them a run is resumed, and its first step shows tools to no model."""
    ended = set[str | None]()
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            return [part for part in message.parts if isinstance(part, ToolCallPart) and part.tool_call_id not in ended]
        ended |= {getattr(part, "tool_call_id", None) for part in message.parts}
    return []


def inner_fault(asked: Any, edited: Any) -> str | None:
    """Return what is wrong with an edited call of `call_tool`, `asked` being the model's arguments; `None` if nothing is."""
    is_kept = field_of(asked, "name") == field_of(edited, "name") and field_of(edited, "arguments") is not None
    return None if edited == asked or (is_kept and isinstance(inner_arguments(edited), dict)) else _NOT_EDITED


def decision_of(said: object, known: Mapping[str, Any], asked: Any, fault: str | None = None) -> Decision | None:
    """Return the decision on a call, `known` being its metadata, and `asked` its arguments; `None` without one."""
    seen = known.get(APPROVAL, {}).get("digest")
    if isinstance(said, ToolDenied):
        return Decision(approves=False, reason=said.message, seen=seen)
    if not isinstance(said, ToolApproved) or known.get(_WAITS):
        return None
    before: Mapping[str, Any] = asked if isinstance(asked, dict) else {}
    edited = said.override_args if isinstance(said.override_args, dict) else before
    gone = sorted(before.keys() - edited.keys())
    fault = fault or (f"Nothing can be left out of the arguments: {', '.join(gone)}." if gone else None)
    changed = {key: value for key, value in edited.items() if key not in before or before[key] != value}
    return Decision(approves=True, arguments=changed or None, seen=seen, fault=fault)


def asked_again(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a call without an end, `known` being its present one: a run that continues with it defers it again."""
    return {**known, _WAITS: True}


def tool_return(result: ToolResult) -> ToolReturn[Any]:
    """Return a success in the framework's form for its model, with files next to the text."""
    if result.artifacts:
        from toolfleet_registry.previews import previewed  # of a fleet that has a store

        result = previewed(result)
    text, files = shown_parts(result)
    parts = [BinaryContent(file.read(), media_type=file.media_type) for file in files]
    value: Any = [text, *parts] if result.files else result.result
    return ToolReturn(value, metadata={CALL: result.audit.call_id, "attempts": result.audit.attempts})


async def emit_progress(ctx: RunContext[Any], progress: Progress) -> None:
    """Send a call's progress to the run's stream of events."""
    await ctx.emit(ToolProgress(fraction=progress.fraction, message=progress.message))


def seconds_left(deadline: datetime | None) -> float | None:
    """Return the seconds until a run's deadline; `None` without one."""
    if deadline is None:
        return None
    aware = deadline if deadline.tzinfo is not None else deadline.astimezone(UTC)
    return (aware - machine_clock.utc_now()).total_seconds()


class AnyArguments:
    """Accepts any arguments of a model. The fleet validates them, and says in one sentence what is wrong."""

    def validate_json(
        self,
        input: str | bytes | bytearray,  # noqa: A002 - the framework's word
        *,
        allow_partial: bool | Literal["off", "on", "trailing-strings"] = False,
        **_: Any,
    ) -> Any:
        """Parse the JSON. A text that is not JSON stays as it is."""
        if allow_partial not in {False, "off"}:
            return from_json(input, allow_partial="trailing-strings")
        return spoken_arguments(input if isinstance(input, str) else bytes(input).decode(errors="replace"))

    def validate_python(self, input: Any, **_: Any) -> Any:  # noqa: A002 - as above
        """Return the arguments as they are."""
        return input


class FleetToolset(AbstractToolset[AgentDepsT]):
    """The tools that a caller may use: `Agent(model, toolsets=[FleetToolset(fleet, caller)])`.

    A call that is deferred ends the run with `DeferredToolRequests`, which must be among the agent's output types;
    `deferred_results` returns what the next run needs. A run that is cancelled cancels its calls.

    Args:
        fleet: The fleet; it must be open.
        caller: The user and the rights that calls are made with; or a function of the run's context that returns it.
        conversation: The conversation that calls belong to; or a function of the run's context.
        timeout: Seconds until a call has ended, which also ends by the run's own deadline; by default as of
            `ToolFleet.call`.
        defer_after: Seconds after which a call that continues ends the run; by default none does.
        defer_approvals: Whether a call that needs an approval ends the run.
        jobs: Tools whose calls are jobs, which end the run at once: by a poll, or with `None` by their own end.
        approver: The person who votes by a decision that the run is resumed with; or a function of the resumed run's
            context.
        where: Tells which tools are offered; by default all that the caller may use.
        load: How the tools reach the model: `"all"`, `"native"` or `"search"`, as in the guide to tools on demand. The
            search is `find_tools`: the framework keeps `search_tools` for its own.
        always: Tells which tools are in each request as they are; by default none.
        id: The toolset's id, as the framework uses it.

    Raises:
        ValueError: There is no such `load`.

    """

    def __init__(
        self,
        fleet: ToolFleet,
        caller: Caller | Callable[[RunContext[AgentDepsT]], Caller],
        *,
        conversation: Conversation | Callable[[RunContext[AgentDepsT]], Conversation | None] | None = None,
        timeout: float | None = None,
        defer_after: float | None = None,
        defer_approvals: bool = False,
        jobs: Mapping[str, Poll | None] | None = None,
        approver: Approver | Callable[[RunContext[AgentDepsT]], Approver | None] | None = None,
        where: Callable[[ToolDefinition], bool] | None = None,
        load: Loading = "all",
        always: Callable[[ToolDefinition], bool] | None = None,
        id: str = "toolfleet",  # noqa: A002 - the framework's word
    ) -> None:
        self._caller = caller
        self._conversation = conversation
        self._loading = ToolLoading(fleet, load, always, where)
        self._offers = ToolOffers(fleet.tools, self._offered, where)
        self._approver = approver
        self._calls = AdapterCalls(
            fleet, timeout=timeout, defer_after=defer_after, defer_approvals=defer_approvals, jobs=jobs
        )
        self._id = id

    @property
    def id(self) -> str:
        """Implements `AbstractToolset.id`."""
        return self._id

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        """List the tools that the run's caller may use at this step. From memory; converted again only if a tool has changed.

        Args:
            ctx: The run's context.

        Returns:
            The tools, by name.

        Raises:
            FleetUnavailable: Redis does not answer on a loop's first use.

        """
        caller = caller_of(self._caller, ctx)
        offers, listing = await self._offers.of(caller), await self._loading.of(caller)
        if listing.load == "all":
            return dict(offers)
        shown, calls = listing.shown if listing.load == "search" else offers.keys(), open_calls(ctx.messages)
        own = {tool.tool_def.name: tool for tool in map(self._own_tool, listing.demand.offers)}
        if listing.load == "native":  # a call that waits may have been made while there were too many tools for that
            own = {name: tool for name, tool in own.items() if is_called(calls, name)}
        return own | {
            name: tool for name, tool in offers.items() if name in shown or (calls and is_called(calls, name))
        }

    async def search(
        self, ctx: RunContext[AgentDepsT], queries: Sequence[str], tools: Sequence[OfferedTool]
    ) -> list[str]:
        """Search the tools for `capabilities=[ToolSearch(strategy=toolset.search)]`: those of the run's caller.

        Args:
            ctx: The run's context.
            queries: The model's words.
            tools: The tools that may be found.

        Returns:
            The tools' names, the best first.

        Raises:
            FleetUnavailable: Redis does not answer on a loop's first use.

        """
        names = {
            (tool.metadata or {}).get("tool_name"): tool.name for tool in tools
        }  # as other toolsets have changed them
        found = await self._loading.found(" ".join(queries), caller_of(self._caller, ctx))
        return [names[tool.name] for tool in found if tool.name in names]

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        """Run a call.

        Args:
            name: The tool's name, as the model was shown it.
            tool_args: The arguments; the fleet validates them.
            ctx: The run's context.
            tool: The tool, as `get_tools` has returned it.

        Returns:
            The result, in the framework's form for its model.

        Raises:
            ToolFailed: The call has failed; the framework shows this to its model, and does not repeat the call.
            CallDeferred: The call continues after the run.
            ApprovalRequired: People have to approve the call.
            UsageLimitExceeded: The `exit_behavior` of the agent's profile ends the run.

        """
        run_id, arguments = asked_by(ctx, name, tool_args)
        known: dict[str, Any] = {RUN: run_id}
        fault = None
        if isinstance(tool, _OwnTool):
            caller = caller_of(self._caller, ctx)
            if name == _FIND_TOOL:
                return await self._loading.answer(tool_args, caller)
            listing = await self._loading.of(caller)
            meant = listing.called(CALL_TOOL, arguments)
            if meant.spoken.tool is None:
                raise ToolFailed(result_text(no_such_tool(meant.spoken.name, listing.tools.values())))
            definition, name, fault = meant.spoken.tool, meant.spoken.name, inner_fault(arguments, tool_args)
            arguments, tool_args, known = meant.arguments, inner_arguments(tool_args), {**known, _IS_INNER: True}
        else:
            definition = _definition_of(tool)
        asked = FrameworkCall(
            definition,
            name,
            arguments,
            caller_of(self._caller, ctx),
            run_id,
            ctx.tool_call_id,
            in_run(conversation_of(self._conversation, ctx), ctx.run_id),
            seconds_left(ctx.deadline),
            functools.partial(emit_progress, ctx),
        )
        try:
            result = await self._result_of(ctx, asked, tool_args, fault)
        except StillRunning as running:
            raise CallDeferred({**running.step.to_json(), **known}) from None
        except WaitsForApproval as waits:
            raise ApprovalRequired({**waits.to_json(), **known}) from None
        if result.ends_run:
            raise UsageLimitExceeded(result_text(result))
        if not result.success:
            raise ToolFailed(result_text(result))
        return tool_return(result)

    async def deferred_results(
        self,
        requests: DeferredToolRequests,
        caller: Caller,
        decided: DeferredToolResults | None = None,
        approver: Approver | None = None,
        *,
        wait: float | None = None,
    ) -> DeferredToolResults:
        """Wait for the calls that a run has deferred, in any process: for `agent.run(deferred_tool_results=…)`.

        It never makes a call again: one that the fleet has forgotten has an unknown outcome.

        Args:
            requests: What the run has ended with.
            caller: The user and the rights that the calls were made with.
            decided: Results of calls that wait for an approval: they are the votes of `approver`. By default none.
            approver: The person who has decided; without one no vote is taken.
            wait: Seconds to wait at most; `None`: without a limit. A call that has not ended by then, or that still
                waits for an approval, is deferred again by the run.

        Returns:
            What the next run needs.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        results = DeferredToolResults(metadata=dict(requests.metadata))
        votes = {} if decided is None else decided.to_tool_call_results()
        until = None if wait is None else asyncio.get_running_loop().time() + wait
        for call in (*requests.calls, *requests.approvals):
            known = requests.metadata.get(call.tool_call_id, {})
            step, arguments = DeferredStep.of(known), spoken_arguments(call.args)
            if step is None:
                continue
            said = votes.get(call.tool_call_id)
            fault = None
            if known.get(_IS_INNER):
                if isinstance(said, ToolApproved) and said.override_args is not None:
                    fault = inner_fault(arguments, said.override_args)
                    said = replace(said, override_args=inner_arguments(said.override_args))
                arguments = inner_arguments(arguments)
            decision = decision_of(said, known, arguments, fault)
            key = call_key(step.run_id, call.tool_call_id, step.tool_name, arguments) if RUN in known else None
            left = None if until is None else max(until - asyncio.get_running_loop().time(), 0)
            try:
                result = await self._calls.result_of(step, caller, decision, approver, key=key, patience=left)
            except (StillRunning, WaitsForApproval) as waits:
                asks = waits.to_json() if isinstance(waits, WaitsForApproval) else known
                results.approvals[call.tool_call_id] = ToolApproved()
                results.metadata[call.tool_call_id] = asked_again({**known, **asks})
            else:
                shown = tool_return(result) if result.success else ToolFailed(result_text(result))
                results.calls[call.tool_call_id] = shown
        return results

    async def _result_of(
        self, ctx: RunContext[AgentDepsT], asked: FrameworkCall, approved: Any, fault: str | None
    ) -> ToolResult:
        """Return the end of a call that is made now, or was made before the run was resumed.

        `approved`: the arguments as people have edited them; `fault`: why they cannot be so, if they cannot.
        """
        if not ctx.tool_call_approved:
            return await self._calls.call(asked)
        known = ctx.tool_call_metadata or {}
        approver = self._approver(ctx) if callable(self._approver) else self._approver
        decision = decision_of(ToolApproved(override_args=approved), known, asked.arguments, fault)
        step = DeferredStep.of(known)
        if step is None:
            if (fault or asked.arguments != approved) and await self._calls.step_before(asked) is None:
                if fault:
                    return ToolResult.refused(asked.tool.name, "invalid_arguments", fault)
                # People were asked by another toolset: the fleet makes the call only now, as they have edited it.
                asked = replace(asked, arguments=approved)
            return await self._calls.call(asked, decision, approver)
        patience = self._calls.patience(asked.tool)
        return await self._calls.resumed(step, asked, decision, approver, patience=patience)

    def _offered(self, tool: ToolDefinition, name: str) -> "ToolsetTool[AgentDepsT]":
        offered = OfferedTool(
            name=name,
            description=tool.description,
            parameters_json_schema=input_schema(tool),
            strict=False,  # else the schema may be rewritten for its provider
            metadata={"tool_name": tool.name, "tags": tool.tags, "effect": effect_of(tool)},
            defer_loading=self._loading.defers(tool),
        )
        return _FleetTool(toolset=self, tool_def=offered, max_retries=0, args_validator=AnyArguments(), definition=tool)

    def _own_tool(self, own: Mapping[str, Any]) -> "ToolsetTool[AgentDepsT]":
        name = _FIND_TOOL if own["name"] == SEARCH_TOOL else own["name"]
        offered = OfferedTool(
            name=name, description=own["description"], parameters_json_schema=own["inputSchema"], strict=False
        )
        return _OwnTool(toolset=self, tool_def=offered, max_retries=0, args_validator=AnyArguments())


class _OwnTool(ToolsetTool[AgentDepsT]):
    """`find_tools` or `call_tool`."""


@dataclass(kw_only=True)
class _FleetTool(ToolsetTool[AgentDepsT]):
    definition: ToolDefinition


def _definition_of(tool: ToolsetTool[Any]) -> ToolDefinition:
    if not isinstance(tool, _FleetTool):
        raise TypeError(f"{tool.tool_def.name!r} is no tool of this toolset.")
    return tool.definition
