"""Offers the fleet's tools to agents of the OpenAI Agents SDK: its function tools, listed for each turn."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from agents import (
    Agent,
    FunctionTool,
    RunConfig,
    RunContextWrapper,
    Tool,
    ToolApprovalItem,
    ToolErrorFormatter,
    ToolErrorFormatterArgs,
    ToolSearchTool,
    tool_namespace,
)
from agents.exceptions import AgentsException
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext

from toolfleet_registry.contracts import Caller, Conversation, ResultFile, ToolDefinition, ToolResult
from toolfleet_registry.contracts.jobs import Poll
from toolfleet_registry.contracts.names import provider_name
from toolfleet_registry.formats.calls import spoken_arguments
from toolfleet_registry.formats.on_demand import CALL_TOOL, SEARCH_TOOL
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.system import randomness
from toolfleet_tasks.adapters.calling import (
    AdapterCalls,
    Decision,
    FrameworkCall,
    Loading,
    OfferedTools,
    StillRunning,
    ToolLoading,
    WaitsForApproval,
    caller_of,
    conversation_of,
    in_run,
    no_such_tool,
    shown_parts,
)
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.messages import fleet_results

Context = RunContextWrapper[Any]

TContext = TypeVar("TContext")

Output = str | Sequence[ToolOutputText | ToolOutputImage | ToolOutputFileContent]

_MOST_WAITING = 1000  # runs whose calls wait

NO_CALL = "toolfleet-no-call"
"""An id that no call has: it is approved only where its tool is for good."""


@dataclass(frozen=True, slots=True)
class OfferedFunction:
    """One tool as it is offered to a run."""

    tool: FunctionTool
    definition: ToolDefinition
    run_id: str
    ended: dict[str | None, ToolResult] = field(default_factory=dict)
    """By their keys: of calls that have ended before the SDK runs them."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The offers of a run, by their names. The SDK's context of a call is another object than that of its run."""

    run_id: str
    offers: dict[str, OfferedFunction] = field(default_factory=dict)


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
    """Return the result for the model. The SDK has no mark for a failure, so the text says it."""
    text, files = shown_parts(result)
    return [ToolOutputText(text=text), *map(_part, files)] if files else text


async def _nothing(run: ToolContext[Any], arguments: str) -> str:
    raise NotImplementedError


def _part(file: ResultFile) -> ToolOutputImage | ToolOutputFileContent:
    url = f"data:{file.media_type};base64,{file.data}"
    if file.kind == "image":
        return ToolOutputImage(image_url=url)
    return ToolOutputFileContent(file_data=url, filename=file.name or "file.pdf")


class FleetTools:
    """The tools that a caller may use, for a `FleetAgent`.

    A call that is deferred interrupts the run, as `needs_approval` does; `is_over` says when its `RunState` may approve
    it. That needs a `run_id`. A run that is cancelled cancels its calls.

    Args:
        fleet: The fleet; it must be open.
        caller: The user and the rights that calls are made with; or a function of the run's context that returns it.
        conversation: The conversation that calls belong to; or a function of the run's context.
        run_id: A function of the run's context that returns a part of the calls' keys: the same in a process that
            continues the run from a `RunState`. By default each run has its own.
        timeout: Seconds until a call has ended; by default as of `ToolFleet.call`.
        defer_after: Seconds after which a call that continues interrupts the run; by default none does.
        defer_approvals: Whether a call that people have to approve interrupts the run.
        jobs: Tools whose calls are jobs, which interrupt the run at once: by a poll, or with `None` by their own end.
        approver: The person who votes if the `RunState` approves; or a function of the run's context. `decide`
            takes more than that.
        where: Tells which tools are offered; by default all that the caller may use.
        load: How the tools reach the model: `"all"`, `"native"` (for OpenAI's Responses models) or `"search"`, as in
            the guide to tools on demand.
        always: Tells which tools are in each request as they are; by default none.

    Raises:
        ValueError: There is no such `load`.

    """

    def __init__(
        self,
        fleet: ToolFleet,
        caller: Caller | Callable[[Context], Caller],
        *,
        conversation: Conversation | Callable[[Context], Conversation | None] | None = None,
        run_id: Callable[[Context], str] | None = None,
        timeout: float | None = None,
        defer_after: float | None = None,
        defer_approvals: bool = False,
        jobs: Mapping[str, Poll | None] | None = None,
        approver: Approver | Callable[[Context], Approver | None] | None = None,
        where: Callable[[ToolDefinition], bool] | None = None,
        load: Loading = "all",
        always: Callable[[ToolDefinition], bool] | None = None,
    ) -> None:
        self._calls = AdapterCalls(
            fleet, timeout=timeout, defer_after=defer_after, defer_approvals=defer_approvals, jobs=jobs
        )
        if self._calls.is_deferring and run_id is None:
            raise ValueError("What is deferred needs a run_id: the run that goes on has to find its call again.")
        self._fleet = fleet
        self._caller = caller
        self._conversation = conversation
        self._run_id = run_id
        self._loading = ToolLoading(fleet, load, always, where)
        self._is_native = load == "native"
        self._approver = approver
        self._defer_approvals = defer_approvals
        self._runs: WeakKeyDictionary[Context, _Run] = WeakKeyDictionary()
        self._waiting: dict[str, dict[str | None, str]] = {}  # by run and call: the tools that were called

    async def of(self, run: Context) -> list[Tool]:
        """List the tools that the run's caller may use now. While nothing changes, the same objects in each of its turns.

        Args:
            run: The run's context.

        Returns:
            The tools.

        Raises:
            FleetUnavailable: Nothing is known yet, and Redis does not answer.

        """
        caller = caller_of(self._caller, run)
        listing = await self._loading.of(caller)
        made = self._made(run)
        waiting = set(self._waiting.get(made.run_id, {}).values())
        is_whole = listing.load != "search"
        names = listing.tools if is_whole else sorted(listing.shown | waiting & listing.tools.keys())
        own = [each for each in listing.demand.offers if not is_whole or each["name"] in waiting]
        offers = [self._offer(made, listing, name) for name in names]
        for offer in offers if self._calls.is_deferring else ():
            needs = await self._may_wait(offer, caller)
            offer.tool.needs_approval = functools.partial(self._waits, offer) if needs else False
        found = [ToolSearchTool()] if any(offer.tool.defer_loading for offer in offers) else []
        return [*(self._own_tool(made, each) for each in own), *(offer.tool for offer in offers), *found]

    def _own_tool(self, made: _Run, own: Mapping[str, Any]) -> FunctionTool:
        """Return `search_tools` or `call_tool`."""
        tool = FunctionTool(
            name=own["name"],
            description=own["description"],
            params_json_schema=own["inputSchema"],
            on_invoke_tool=self._search if own["name"] == SEARCH_TOOL else functools.partial(self._call, made),
            strict_json_schema=False,
        )
        if self._calls.is_deferring and own["name"] == CALL_TOOL:
            tool.needs_approval = functools.partial(self._inner_waits, made)
        return tool

    async def _search(self, run: ToolContext[Any], arguments: str) -> Output:
        return await self._loading.answer(spoken_arguments(arguments), caller_of(self._caller, run))

    async def _call(self, made: _Run, run: ToolContext[Any], arguments: str) -> Output:
        found = await self._called(made, run, spoken_arguments(arguments))
        if isinstance(found, ToolResult):
            return shown_output(found)
        return await self._invoke(found[0], run, json.dumps(found[1]))

    async def _inner_waits(self, made: _Run, run: Context, arguments: dict[str, Any], call_id: str) -> bool:
        found = await self._called(made, run, spoken_arguments(json.dumps(arguments)))  # as `_call` reads them
        if isinstance(found, ToolResult):
            return False
        offer, inner = found
        needs = await self._may_wait(offer, caller_of(self._caller, run))
        return needs and await self._waits(offer, run, inner, call_id, CALL_TOOL)

    async def _called(
        self, made: _Run, run: Context, arguments: Any, name: str = CALL_TOOL
    ) -> tuple[OfferedFunction, Any] | ToolResult:
        """Return the tool that is called, by default by `call_tool`, with its arguments; the refusal if there is none."""
        listing = await self._loading.of(caller_of(self._caller, run))
        meant = listing.called(name, arguments)
        if meant.spoken.tool is None:
            return no_such_tool(meant.spoken.name, listing.tools.values())
        return self._offer(made, listing, provider_name(meant.tool_name)), meant.arguments

    def run_config(self, config: RunConfig | None = None) -> RunConfig:
        """Make a configuration for `Runner.run` with which a tool name that does not exist ends no run.

        The model reads which tools have a name like it. The SDK has this for runs only, not for agents.

        Args:
            config: What else the configuration says, its `tool_error_formatter` included; by default nothing.

        Returns:
            The configuration.

        """
        config = config or RunConfig()
        worded = functools.partial(self._worded, config.tool_error_formatter)
        return replace(config, tool_not_found_behavior="return_error_to_model", tool_error_formatter=worded)

    async def _worded(self, own: ToolErrorFormatter | None, error: ToolErrorFormatterArgs[Any]) -> str | None:
        said = None if own is None else own(error)
        text = await said if inspect.isawaitable(said) else said
        if text is not None or error.kind != "tool_not_found":
            return text
        listing = await self._loading.of(caller_of(self._caller, error.run_context))
        return shown_parts(no_such_tool(error.tool_name, listing.tools.values()))[0]

    async def question(self, item: ToolApprovalItem, run: Context) -> dict[str, Any] | None:
        """Read the question of an interruption of the run, with who may decide until when.

        Args:
            item: The interruption.
            run: The run's context: the result's `context_wrapper`.

        Returns:
            The question; `None` if the interruption is not the fleet's.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        try:
            await self.decide(item, run, None, None)
        except WaitsForApproval as waits:
            return waits.question()
        return None

    async def decide(
        self, item: ToolApprovalItem, run: Context, decision: Mapping[str, Any] | None, approver: Approver | None
    ) -> None:
        """Make a decision about an interruption the vote of a person. After it, `RunState.approve` continues the run with the call's end.

        Args:
            item: The interruption.
            run: The run's context: the result's `context_wrapper`.
            decision: `{"decision": "approve" | "reject", "id", "digest", "reason", "arguments"}`; `id` and `digest` as
                the question has them, `reason` and `arguments` may be left out.
            approver: The person; without one no vote is taken.

        Raises:
            WaitsForApproval: The vote was not taken, or is not enough; its `refusal` says why.
            FleetUnavailable: Redis does not answer.

        """
        asked = await self._asked_by(item, run)
        if asked is not None:
            await self._calls.decide(asked, Decision.of(decision), approver)

    async def is_over(self, item: ToolApprovalItem, run: Context, *, wait: float | None = None) -> bool:
        """Wait for the end of a call that has interrupted the run, after which `RunState.approve` continues it.

        Args:
            item: The interruption.
            run: The run's context: the result's `context_wrapper`.
            wait: Seconds to wait at most; `None`: without a limit.

        Returns:
            Whether it has ended: false for a call that waits for an approval, true for one that the fleet no longer
            knows, whose outcome is unknown.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        asked = await self._asked_by(item, run)
        step = None if asked is None else await self._calls.step_before(asked)
        if asked is None or step is None:
            return True
        try:
            await self._calls.resumed(step, asked, patience=wait)
        except (StillRunning, WaitsForApproval):
            return False
        return True

    async def deferred(self, item: ToolApprovalItem, run: Context) -> dict[str, Any] | None:
        """Read the fleet's ids of the call that has interrupted the run.

        Args:
            item: The interruption.
            run: The run's context: the result's `context_wrapper`.

        Returns:
            Its `kind` and `toolfleet_call_id`, which is the job's id if it is a job; `None` if it is not the fleet's.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        asked = await self._asked_by(item, run)
        step = None if asked is None else await self._calls.step_before(asked)
        return None if step is None else step.to_json()

    async def _asked_by(self, item: ToolApprovalItem, run: Context) -> FrameworkCall | None:
        name, made = item.name or "", self._made(run)
        found = await self._called(made, run, spoken_arguments(item.arguments), name)
        if isinstance(found, ToolResult):
            return None
        self._keep(made.run_id, item.call_id, name)
        return self._asked(found[0], run, json.dumps(found[1]), item.call_id)

    def _keep(self, run_id: str, call_id: str | None, name: str) -> None:
        """List the tool of a call that waits until the call ends, though tools may be shown in another way by then."""
        if self._is_native:
            self._waiting[run_id] = {**self._waiting.pop(run_id, {}), call_id: name}
            while len(self._waiting) > _MOST_WAITING:
                self._waiting.pop(next(iter(self._waiting)))

    def _made(self, run: Context) -> _Run:
        made = self._runs.get(run)
        if made is None:
            run_id = randomness.uuid4_text() if self._run_id is None else self._run_id(run)
            made = self._runs[run] = _Run(run_id)
        return made

    def _offer(self, made: _Run, listing: OfferedTools, name: str) -> OfferedFunction:
        """Return the run's offer of a listed tool. There may be thousands: it makes those that it shows or calls."""
        offer, definition = made.offers.get(name), listing.tools[name]
        if offer is None or (offer.definition is not definition and offer.definition != definition):
            offer = made.offers[name] = self._offered(made.run_id, definition, name)
        return offer

    def _offered(self, run_id: str, definition: ToolDefinition, name: str) -> OfferedFunction:
        tool = function_tool_of(definition, name)
        if self._is_native and self._loading.defers(definition):
            tool.defer_loading = True
            module = definition.name.partition(".")[0]
            (tool,) = tool_namespace(name=module, description=f"Tools of {module}.", tools=[tool])
        offer = OfferedFunction(tool, definition, run_id)
        offer.tool.on_invoke_tool = functools.partial(self._invoke, offer)
        return offer

    def _asked(self, offer: OfferedFunction, run: Context, arguments: Any, call_id: str | None) -> FrameworkCall:
        where = in_run(conversation_of(self._conversation, run), offer.run_id)
        read = spoken_arguments(arguments)
        named = offer.definition, offer.tool.name, read, caller_of(self._caller, run), offer.run_id, call_id
        return FrameworkCall(*named, where)

    def _defers(self, tool: ToolDefinition) -> bool:
        return self._calls.patience(tool) is not None

    async def _may_wait(self, offer: OfferedFunction, caller: Caller) -> bool:
        if self._defers(offer.definition):
            return True
        return self._defer_approvals and bool(await self._fleet.approvals.rules(offer.definition.name, caller))

    async def _waits(
        self, offer: OfferedFunction, run: Context, arguments: dict[str, Any], call_id: str, name: str = ""
    ) -> bool:
        """Make the call, and return whether it interrupts the run. Its result is kept if it comes in time."""
        asked = self._asked(offer, run, json.dumps(arguments), call_id)
        self._keep(offer.run_id, call_id, name or offer.tool.name)
        if not self._defers(offer.definition):
            return await self._calls.asks_people(asked)
        try:
            offer.ended[asked.key] = await self._calls.call(asked)
        except (StillRunning, WaitsForApproval):
            return True
        return False

    async def _invoke(self, offer: OfferedFunction, run: ToolContext[Any], arguments: str) -> Output:
        asked = self._asked(offer, run, arguments, run.tool_call_id)
        self._waiting.get(offer.run_id, {}).pop(run.tool_call_id, None)
        # A run may come here undecided: where Redis was silent as it was to be interrupted.
        is_approved = self._calls.is_deferring and run.is_tool_approved(run.qualified_tool_name, run.tool_call_id)
        approver = self._approver(run) if callable(self._approver) else self._approver
        result = offer.ended.pop(asked.key, None)
        try:
            if result is None:
                result = await (self._resumed(asked, run, approver) if is_approved else self._calls.call(asked))
        except StillRunning as running:  # approved too early, or for good: the run waits
            result = await self._calls.resumed(running.step, asked)
        except WaitsForApproval as waits:
            result = waits.result()
        if result.ends_run:  # the SDK ends its run with it
            raise AgentsException(shown_parts(result)[0])
        return shown_output(result)

    async def _resumed(self, asked: FrameworkCall, run: ToolContext[Any], approver: Approver | None) -> ToolResult:
        """Return the end of a call that has interrupted its run.

        It is not started again, unless the tool was approved permanently.
        """
        decision = Decision(approves=True)
        # What is approved for good was not deferred yet; what is no object has interrupted the run, and is refused.
        if run.is_tool_approved(run.qualified_tool_name, NO_CALL) or not isinstance(asked.arguments, dict):
            if run.tool_name == CALL_TOOL:  # it calls any tool: approved for good, it says nothing of this one
                return await self._calls.call(asked)
            return await self._calls.call(asked, decision, approver)
        step = await self._calls.step_before(asked)
        if step is None:
            return fleet_results.outcome_unknown(asked.tool.name, "the fleet no longer knows the call.")
        return await self._calls.resumed(step, asked, decision, approver)


@dataclass
class FleetAgent(Agent[TContext]):
    """An agent with the fleet's tools in addition to its own: `FleetAgent(name="…", fleet_tools=FleetTools(fleet, caller))`."""

    fleet_tools: FleetTools | None = None
    """What it has of the fleet; `None` for nothing."""

    async def get_all_tools(self, run_context: RunContextWrapper[TContext]) -> list[Tool]:
        """List the agent's tools as `Agent` does, with the fleet's tools at this turn.

        Args:
            run_context: The run's context.

        Returns:
            The tools.

        Raises:
            FleetUnavailable: Nothing is known yet, and Redis does not answer.

        """
        own = await super().get_all_tools(run_context)
        return own if self.fleet_tools is None else [*own, *await self.fleet_tools.of(run_context)]
