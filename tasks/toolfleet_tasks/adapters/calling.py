"""Calls the fleet for an agent framework: by key, within the run's time, and taken back with the run."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from toolfleet_registry.contracts import Caller, Conversation, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.spoken_names import Spoken
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.formats import as_spoken
from toolfleet_registry.formats.providers.tool_names import near_names
from toolfleet_tasks.adapters.call_key import call_key
from toolfleet_tasks.calls.begun_calls import Owner
from toolfleet_tasks.calls.begun_handle import BegunHandle
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.client.progress_listener import OnProgress, telling
from toolfleet_tasks.messages import fleet_results

C = TypeVar("C")

_CONFIRMATION_SECONDS = 5.0  # beyond the patience with a call: a Redis that starts anew is back by then
_take_backs = set[asyncio.Task[None]]()  # nobody else holds these


@dataclass(frozen=True, slots=True)
class FrameworkCall:
    """One tool call as a framework has it: the tool, as its model was shown it, and the framework's own ids.

    `arguments` may be anything: they are judged here, once. `seconds`: by when the run wants an end, `None` for no wish.
    """

    tool: ToolDefinition
    name: str
    arguments: Any
    caller: Caller
    run_id: str | None
    call_id: str | None
    conversation: Conversation | None = None
    seconds: float | None = None
    on_progress: OnProgress | None = None

    def as_call(self) -> ToolCall:
        """The call with its key; its errors are in the names that the model was shown."""
        key = call_key(self.run_id, self.call_id, self.tool.name, self.arguments)
        spoken = Spoken("mcp", self.name, self.tool)
        return ToolCall(tool_name=self.tool.name, arguments=self.arguments, idempotency_key=key, spoken=spoken)


class StillRunning(Exception):
    """The call `call_id` goes on: any process can ask for its end, and the same call made anew joins it."""

    def __init__(self, call_id: str, tool_name: str) -> None:
        super().__init__(f"Call {call_id!r} of {tool_name!r} goes on.")
        self.call_id = call_id
        self.tool_name = tool_name


class AdapterCalls:
    """Makes the calls of one adapter, and takes each back whose awaiting task is cancelled.

    `timeout`: seconds for a call, `None` for the fleet's own bound. `defer_after`: after how many seconds a call is `StillRunning`;
    `None`: its end is waited for. A call without an id of its framework's is never deferred: it could not be found again.
    """

    def __init__(self, fleet: ToolFleet, *, timeout: float | None = None, defer_after: float | None = None) -> None:
        self._fleet = fleet
        self._timeout = timeout
        self._defer_after = defer_after

    async def call(self, asked: FrameworkCall) -> ToolResult:
        """Bring the call's result. Raises `StillRunning`, and nothing for what becomes of the call."""
        call, where = asked.as_call(), asked.conversation
        seconds = _sooner(self._timeout, asked.seconds)
        if self._defer_after is None or call.idempotency_key is None:
            return await self._fleet.call(
                call, asked.caller, conversation=where, timeout=seconds, on_progress=asked.on_progress
            )
        try:
            handle = await self._fleet.begun_calls.begin(
                call, asked.caller, _owner(asked.caller), conversation=where, timeout=seconds, waits_for_turn=True
            )
        except FleetUnavailable as exc:
            return as_spoken(fleet_results.fleet_unavailable(call.tool_name, str(exc)), call.spoken)
        return as_spoken(await self._end_of(handle, asked.on_progress, self._defer_after), call.spoken)

    async def result_of(self, call_id: str, tool_name: str, caller: Caller) -> ToolResult:
        """The end of a call of this caller's that is `StillRunning`, by its deadline. Never begins one. Raises `FleetUnavailable`.

        A call that is no longer known, or another's, has an unknown outcome.
        """
        handle = await self._fleet.begun_calls.attach(call_id, _owner(caller))
        if handle is None:
            return fleet_results.outcome_unknown(tool_name, "the fleet no longer knows the call.")
        try:
            while (result := await handle.end_within(_LONGEST_SECONDS)) is None:
                pass
            return result
        finally:
            handle.leave()

    async def _end_of(self, handle: BegunHandle, on_progress: OnProgress | None, patience: float) -> ToolResult:
        async with contextlib.AsyncExitStack() as stack:
            if on_progress is not None:
                await stack.enter_async_context(telling(handle.progress(), on_progress))
            try:
                while (result := await handle.end_within(patience)) is None:
                    if await handle.is_kept_within(_CONFIRMATION_SECONDS):
                        raise StillRunning(handle.id, handle.tool_name)
            except asyncio.CancelledError:
                _take_back(handle)
                raise
        return result


def caller_of(caller: Caller | Callable[[C], Caller], context: C) -> Caller:
    """Whose run it is: one caller's, or as a function of the run's context says."""
    return caller if isinstance(caller, Caller) else caller(context)


def conversation_of(
    conversation: Conversation | Callable[[C], Conversation | None] | None, context: C
) -> Conversation | None:
    """Where the run's calls come from, likewise."""
    return conversation(context) if callable(conversation) else conversation


def in_run(conversation: Conversation | None, run_id: str | None) -> Conversation | None:
    """The same with the framework's own run, where it says none: what a profile's `run_limit` counts by."""
    if run_id is None or (conversation is not None and conversation.run_id is not None):
        return conversation
    return (conversation or Conversation()).model_copy(update={"run_id": run_id})


def no_such_tool(name: str, tools: Iterable[ToolDefinition]) -> ToolResult:
    """The end of a call of what its model was not offered: with up to three names that it may have meant."""
    refusal = ToolResult.refused(name.encode("utf-8", "replace").decode(), "unknown_tool", "There is no such tool.")
    return as_spoken(refusal, Spoken("mcp", name, None, near_names(name, tools, "mcp")))


def _owner(caller: Caller) -> Owner:
    return Owner(caller.user_id)


def _sooner(*seconds: float | None) -> float | None:
    known = [each for each in seconds if each is not None]
    return min(known) if known else None


def _take_back(handle: BegunHandle) -> None:
    """In a task of its own: whoever is cancelled waits no longer."""
    task = asyncio.get_running_loop().create_task(handle.cancel(), name="toolfleet-take-back")
    _take_backs.add(task)
    task.add_done_callback(_take_backs.discard)


_LONGEST_SECONDS = 86_400.0
