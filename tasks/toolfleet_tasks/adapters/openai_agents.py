"""Offers the fleet's tools to agents of the OpenAI Agents SDK: its function tools, listed for each turn."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from agents import Agent, FunctionTool, RunContextWrapper, Tool, ToolApprovalItem
from agents.exceptions import AgentsException
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext

from toolfleet_registry.contracts import Caller, Conversation, ResultFile, ToolDefinition, ToolResult
from toolfleet_registry.formats.calls import spoken_arguments
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.system import randomness
from toolfleet_tasks.adapters.calling import AdapterCalls
from toolfleet_tasks.adapters.decisions import Decision, WaitsForApproval
from toolfleet_tasks.adapters.framework_call import FrameworkCall, caller_of, conversation_of, in_run
from toolfleet_tasks.adapters.offers import ToolOffers
from toolfleet_tasks.adapters.result_text import shown_parts
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.client.fleet import ToolFleet

TContext = TypeVar("TContext")

Context = RunContextWrapper[Any]
_Output = str | Sequence[ToolOutputText | ToolOutputImage | ToolOutputFileContent]


class FleetTools:
    """The tools that `caller` may use, for a `FleetAgent`.

    `caller`, `conversation` and `run_id` may be functions of the run's context, for agents with many users. The `run_id` is a part of
    the calls' keys: without one each run has its own. A run that another process goes on with, from a `RunState`, needs one
    that is the same there. `timeout`: seconds for a call. `where` says which tools are offered. A run that is cancelled takes its
    calls back.

    With `defer_approvals`, which needs a `run_id`, a call that people have to approve interrupts the run, as `needs_approval` does.
    What the `RunState` approves then is a vote of `approver`, who may follow from the run's context; `decide` takes more than that.
    """

    def __init__(  # noqa: PLR0913 - what may be said of an agent's calls
        self,
        fleet: ToolFleet,
        caller: Caller | Callable[[Context], Caller],
        *,
        conversation: Conversation | Callable[[Context], Conversation | None] | None = None,
        run_id: Callable[[Context], str] | None = None,
        timeout: float | None = None,
        defer_approvals: bool = False,
        approver: Approver | Callable[[Context], Approver | None] | None = None,
        where: Callable[[ToolDefinition], bool] | None = None,
    ) -> None:
        if defer_approvals and run_id is None:
            raise ValueError("defer_approvals needs a run_id: the run that goes on has to find its call again.")
        self._fleet = fleet
        self._caller = caller
        self._conversation = conversation
        self._run_id = run_id
        self._where = where
        self._approver = approver
        self._defer_approvals = defer_approvals
        self._calls = AdapterCalls(fleet, timeout=timeout, defer_approvals=defer_approvals)
        self._runs: WeakKeyDictionary[Context, ToolOffers[_Offer]] = WeakKeyDictionary()

    async def of(self, run: Context) -> list[FunctionTool]:
        """What the run's caller may use now. While nothing changes, the same objects in each of its turns.

        Raises `FleetUnavailable` if nothing is known yet, and Redis is silent.
        """
        offers, caller = (await self._offers_of(run)).values(), caller_of(self._caller, run)
        for offer in offers if self._defer_approvals else ():
            asks = functools.partial(self._asks_people, offer)
            needs = await self._fleet.approvals.rules(offer.definition.name, caller)
            offer.tool.needs_approval = asks if needs else False
        return [offer.tool for offer in offers]

    async def question(self, item: ToolApprovalItem, run: Context) -> dict[str, Any] | None:
        """What people are asked by an interruption of the run, and who may decide until when; `None`: nothing of the fleet's.

        `run`: the result's `context_wrapper`. Raises `FleetUnavailable`.
        """
        try:
            await self.decide(item, run, None, None)
        except WaitsForApproval as waits:
            return waits.question()
        return None

    async def decide(
        self, item: ToolApprovalItem, run: Context, decision: Mapping[str, Any] | None, approver: Approver | None
    ) -> None:
        """Make a decision about an interruption the vote of `approver`: `{"decision": "approve" | "reject", "id", "digest", "reason", "arguments"}`.

        Once it returns, `RunState.approve` has the run go on with the end of the call, whichever that is. Raises
        `WaitsForApproval`, whose `refusal` says why it was not taken, if so, and `FleetUnavailable`.
        """
        offer = (await self._offers_of(run)).get(item.name or "")
        if offer is not None:
            asked = self._asked(offer, run, item.arguments or "", item.call_id)
            await self._calls.decide(asked, Decision.of(decision), approver)

    async def _offers_of(self, run: Context) -> Mapping[str, "_Offer"]:
        offers = self._runs.get(run)
        if offers is None:
            run_id = randomness.uuid4_text() if self._run_id is None else self._run_id(run)
            offered = functools.partial(self._offered, run_id)
            offers = self._runs[run] = ToolOffers(self._fleet, offered, self._where)
        return await offers.of(caller_of(self._caller, run))

    def _offered(self, run_id: str, definition: ToolDefinition, name: str) -> "_Offer":
        tool = FunctionTool(
            name=name,
            description=definition.description,
            params_json_schema=input_schema(definition),
            on_invoke_tool=_nothing,
            strict_json_schema=False,  # else the schema is rewritten in place
        )
        offer = _Offer(tool, definition, run_id)
        tool.on_invoke_tool = functools.partial(self._invoke, offer)
        return offer

    def _asked(self, offer: "_Offer", run: Context, arguments: Any, call_id: str | None) -> FrameworkCall:
        where = in_run(conversation_of(self._conversation, run), offer.run_id)
        read = spoken_arguments(arguments)
        named = offer.definition, offer.tool.name, read, caller_of(self._caller, run), offer.run_id, call_id
        return FrameworkCall(*named, where)

    async def _asks_people(self, offer: "_Offer", run: Context, arguments: dict[str, Any], call_id: str) -> bool:
        return await self._calls.asks_people(self._asked(offer, run, arguments, call_id))

    async def _invoke(self, offer: "_Offer", run: ToolContext[Any], arguments: str) -> _Output:
        asked = self._asked(offer, run, arguments, run.tool_call_id)
        # A run may come here undecided: where Redis was silent as it was to be interrupted.
        is_approved = self._defer_approvals and run.is_tool_approved(asked.name, run.tool_call_id)
        approver = self._approver(run) if callable(self._approver) else self._approver
        try:
            result = await self._calls.call(asked, Decision(approves=True) if is_approved else None, approver)
        except WaitsForApproval as waits:
            result = waits.result()
        if result.ends_run:  # the SDK ends its run with it
            raise AgentsException(shown_parts(result)[0])
        return _shown(result)


@dataclass(frozen=True, slots=True)
class _Offer:
    tool: FunctionTool
    definition: ToolDefinition
    run_id: str


async def _nothing(run: ToolContext[Any], arguments: str) -> str:
    raise NotImplementedError


@dataclass
class FleetAgent(Agent[TContext]):
    """An agent that has the fleet's tools beside its own: `FleetAgent(name="…", fleet_tools=FleetTools(fleet, caller))`."""

    fleet_tools: FleetTools | None = None
    """What it has of the fleet; `None` for nothing."""

    async def get_all_tools(self, run_context: RunContextWrapper[TContext]) -> list[Tool]:
        """As `Agent` has it, with the fleet's tools as they are at this turn."""
        own = await super().get_all_tools(run_context)
        return own if self.fleet_tools is None else [*own, *await self.fleet_tools.of(run_context)]


def _shown(result: ToolResult) -> _Output:
    """The SDK repeats no call, and has no mark for a failure: its text says all."""
    text, files = shown_parts(result)
    return [ToolOutputText(text=text), *map(_part, files)] if files else text


def _part(file: ResultFile) -> ToolOutputImage | ToolOutputFileContent:
    url = f"data:{file.media_type};base64,{file.data}"
    if file.kind == "image":
        return ToolOutputImage(image_url=url)
    return ToolOutputFileContent(file_data=url, filename=file.name or "file.pdf")
