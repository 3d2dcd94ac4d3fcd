"""Offers the fleet's tools to LangChain's agents and to LangGraph, as middleware."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.tool_call_limit import ToolCallLimitExceededError
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt

from toolfleet_registry.contracts import Caller, Conversation, ResultFile, ToolDefinition, ToolResult
from toolfleet_registry.contracts.call_context import Progress
from toolfleet_registry.contracts.jobs import Poll
from toolfleet_registry.formats.on_demand import SEARCH_TOOL
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_tasks.adapters.calling import (
    AdapterCalls,
    Decision,
    DeferredStep,
    FrameworkCall,
    Loading,
    StillRunning,
    ToolLoading,
    ToolOffers,
    WaitsForApproval,
    caller_of,
    conversation_of,
    gone_tool,
    in_run,
    no_such_tool,
    shown_parts,
)
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.client.fleet import ToolFleet

Answer = ToolMessage | Command[Any]

_CHECKPOINTER = "__pregel_checkpointer"  # where the graph's configuration has it
_INTERRUPT = "__interrupt__"
_TOOL_CALL = "tool_call_id"


class FleetLimitReached(ToolCallLimitExceededError):
    """The limit of calls of an agent's profile is reached, which ends the run: a subclass of LangChain's own error."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(0, 0, None, None, name)
        self.args = (text,)


class FleetMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """The tools that a caller may use: `create_agent(model, middleware=[FleetMiddleware(fleet, caller)])`, with `ainvoke` or `astream`.

    A call that is deferred interrupts the graph, which needs a checkpointer for it; once it is resumed it waits for the
    same call. A run that is cancelled cancels its calls. A custom graph takes `awrap_tool_call` for its `ToolNode`, and
    binds `offers` to its model.

    Args:
        fleet: The fleet; it must be open.
        caller: The user and the rights that calls are made with; or a function of the run's context that returns it.
        conversation: The conversation that calls belong to; or a function of the run's context.
        timeout: Seconds until a call has ended; by default as of `ToolFleet.call`.
        defer_after: Seconds after which a call that continues interrupts the graph; by default none does.
        defer_approvals: Whether a call that needs an approval interrupts the graph.
        jobs: Tools whose calls are jobs, which interrupt the graph at once: by a poll, or with `None` by their own end.
        approver: The person who votes by the value that the graph is resumed with; or a function of that value.
        where: Tells which tools are offered; by default all that the caller may use.
        load: How the tools reach the model: `"all"`, `"native"` or `"search"`, as in the guide to tools on demand.
        always: Tells which tools are in each request as they are; by default none.

    Raises:
        ValueError: There is no such `load`.

    """

    def __init__(
        self,
        fleet: ToolFleet,
        caller: Caller | Callable[[Any], Caller],
        *,
        conversation: Conversation | Callable[[Any], Conversation | None] | None = None,
        timeout: float | None = None,
        defer_after: float | None = None,
        defer_approvals: bool = False,
        jobs: Mapping[str, Poll | None] | None = None,
        approver: Approver | Callable[[Mapping[str, Any]], Approver | None] | None = None,
        where: Callable[[ToolDefinition], bool] | None = None,
        load: Loading = "all",
        always: Callable[[ToolDefinition], bool] | None = None,
    ) -> None:
        super().__init__()
        self._caller = caller
        self._conversation = conversation
        self._loading = ToolLoading(fleet, load, always, where)
        self._offers = ToolOffers(fleet.tools, _offered, where)
        self._deferred = ToolOffers(fleet.tools, _deferred, where)
        self._approver = approver
        self._calls = AdapterCalls(
            fleet, timeout=timeout, defer_after=defer_after, defer_approvals=defer_approvals, jobs=jobs
        )

    async def offers(self, caller: Caller) -> list[dict[str, Any]]:
        """List the tools that a caller may use now, for any chat model's `bind_tools`.

        Args:
            caller: The user and the rights of the call.

        Returns:
            The tools, in OpenAI's form.

        Raises:
            FleetUnavailable: Redis does not answer on a loop's first use.

        """
        return list((await self._offers.of(caller)).values())

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | AIMessage:
        """Show the model the fleet's tools, as they are at this step, in addition to the agent's own.

        Args:
            request: The request to the model.
            handler: What makes it.

        Returns:
            The model's answer.

        Raises:
            FleetUnavailable: Redis does not answer on a loop's first use.

        """
        caller = caller_of(self._caller, request.runtime.context)
        listing, offers = await self._loading.of(caller), await self._offers.of(caller)
        shown: list[Any] = [offer for name, offer in offers.items() if name in listing.shown]
        if listing.load == "native":
            later = await self._deferred.of(caller)
            shown += [tool for name, tool in later.items() if name not in listing.shown]
        shown += [_function(own["name"], own["description"], own["inputSchema"]) for own in listing.own()]
        return await handler(request.override(tools=[*request.tools, *shown]))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]
    ) -> Answer:
        """Run a call of the fleet's. One of the agent's own tools is left to the handler.

        Args:
            request: The call.
            handler: What runs calls of the agent's own tools.

        Returns:
            The message with the result.

        Raises:
            FleetLimitReached: The `exit_behavior` of the agent's profile ends the run.

        """
        if request.tool is not None:
            return await handler(request)
        name, runtime = request.tool_call["name"], request.runtime
        caller = caller_of(self._caller, runtime.context)
        listing = await self._loading.of(caller)
        if listing.load != "all" and name == SEARCH_TOOL:
            text = await self._loading.answer(request.tool_call["args"], caller)
            return ToolMessage(content=text, tool_call_id=request.tool_call["id"] or "", name=name)
        meant = listing.called(name, request.tool_call["args"])
        tool, name = meant.spoken.tool, meant.spoken.name
        step = await _interrupted_before(request) if self._calls.is_deferring else None
        if tool is None and step is None:
            return _message(request, no_such_tool(name, listing.tools.values()))
        asked = FrameworkCall(
            tool or gone_tool("" if step is None else step.tool_name),
            name,
            meant.arguments,
            caller,
            _origin_of(request),
            request.tool_call["id"],
            in_run(conversation_of(self._conversation, runtime.context), _run_id_of(request)),
            on_progress=_writer(request),
        )
        result = await self._end_of(request, asked, step)
        if result.ends_run:
            raise FleetLimitReached(name, shown_parts(result)[0])
        return _message(request, result)

    async def _end_of(self, request: ToolCallRequest, asked: FrameworkCall, step: DeferredStep | None) -> ToolResult:
        """Return the call's end, whenever the graph is resumed.

        It is found by the id in its last interrupt, the `step`, without a new call.

        The values that it was resumed with before come again: so a decision names its approver, and the end is waited
        for once.
        """
        patience, decision, approver = self._calls.patience(asked.tool), None, None
        while True:
            try:
                if step is None:
                    return await self._calls.call(asked)
                return await self._calls.resumed(step, asked, decision, approver, patience=patience)
            except StillRunning as running:
                step, patience = running.step, 0.0
                interrupt(_interrupt_value(request, running.step.to_json()))
            except WaitsForApproval as waits:
                step = waits.step
                value = interrupt(_interrupt_value(request, waits.to_json()))
                decision = Decision.of(value)
                approver = self._approver_of(value) if decision is not None else None

    def _approver_of(self, value: Mapping[str, Any]) -> Approver | None:
        return self._approver(value) if callable(self._approver) else self._approver


def _offered(tool: ToolDefinition, name: str) -> dict[str, Any]:
    """Return a tool as a dictionary, whose schema LangChain leaves as it is."""
    return _function(name, tool.description, input_schema(tool))


def _function(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _deferred(tool: ToolDefinition, name: str) -> BaseTool:
    """Return a tool as an object, which alone LangChain defers; its calls come to the middleware."""
    return StructuredTool(
        name=name,
        description=tool.description or name,
        args_schema=input_schema(tool),
        coroutine=_nothing,
        extras={"defer_loading": True},
    )


async def _nothing(**_: Any) -> None:
    raise NotImplementedError


def _writer(request: ToolCallRequest) -> Callable[[Progress], None]:
    """Return a function that sends progress to the graph's `custom` event stream."""
    write, call = request.runtime.stream_writer, request.tool_call

    def tell(progress: Progress) -> None:
        write({"tool_call_id": call["id"], "tool_name": call["name"], "progress": progress.model_dump()})

    return tell


def _message(request: ToolCallRequest, result: ToolResult) -> ToolMessage:
    text, files = shown_parts(result)
    return ToolMessage(
        content=[{"type": "text", "text": text}, *map(_block, files)] if files else text,
        tool_call_id=request.tool_call["id"] or "",
        name=request.tool_call["name"],
        status="success" if result.success else "error",
        artifact=result.model_dump(mode="json", exclude={"files"}),
    )


def _block(file: ResultFile) -> dict[str, Any]:
    block = {"type": file.kind, "base64": file.data, "mime_type": file.media_type}
    return {**block, "filename": file.name} if file.name else block


def _origin_of(request: ToolCallRequest) -> str | None:
    """Return the thread, and the model's message that asks for the call: the same in every repeat of its step.

    A graph without such a message in its state has the checkpoint in its place.
    """
    info, state = request.runtime.execution_info, request.state
    held: Any = state if isinstance(state, list) else _messages_of(state)
    asks = (each for each in reversed(held) if isinstance(each, AIMessage) and _has(each, request.tool_call["id"]))
    message_id = next((each.id for each in asks), None)
    thread_id, checkpoint_id = (None, None) if info is None else (info.thread_id, info.checkpoint_id)
    origin = message_id or checkpoint_id
    return None if origin is None else f"{thread_id}/{origin}"


def _run_id_of(request: ToolCallRequest) -> str | None:
    """Return the run's id, if its caller has given it one."""
    info = request.runtime.execution_info
    return None if info is None else info.run_id


def _interrupt_value(request: ToolCallRequest, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value that interrupts the graph for this call; `known` is what is stored of it."""
    return {**known, _TOOL_CALL: request.tool_call["id"]}


async def _interrupted_before(request: ToolCallRequest) -> DeferredStep | None:
    """Return the call for which this step was interrupted last, by its checkpoint; `None` if it was not.

    A step that is started again from an earlier checkpoint is another step.
    """
    info, config = request.runtime.execution_info, request.runtime.config.get("configurable", {})
    checkpointer = config.get(_CHECKPOINTER)
    if info is None or info.thread_id is None or not isinstance(checkpointer, BaseCheckpointSaver):
        return None
    where = {"thread_id": info.thread_id, "checkpoint_ns": info.checkpoint_ns.rpartition("|")[0]}
    asked = RunnableConfig(configurable={**where, "checkpoint_id": info.checkpoint_id})
    found = await checkpointer.aget_tuple(asked)
    writes = (found.pending_writes if found is not None else None) or []
    for task_id, channel, interrupts in reversed(writes):
        if (task_id, channel) == (info.task_id, _INTERRUPT):
            values = [each.value for each in interrupts]
            own = (
                each for each in values if isinstance(each, dict) and each.get(_TOOL_CALL) == request.tool_call["id"]
            )
            return DeferredStep.of(next(own, None))
    return None


def _messages_of(state: Any) -> Any:
    held = state.get("messages") if isinstance(state, dict) else getattr(state, "messages", None)
    return held if isinstance(held, list) else []


def _has(message: AIMessage, call_id: str | None) -> bool:
    return any(call["id"] == call_id for call in message.tool_calls)
