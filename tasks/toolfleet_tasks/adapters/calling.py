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
from toolfleet_tasks.adapters.decisions import (
    Decision,
    WaitsForApproval,
    approval_of,
    asked_before,
    denied_before,
    voted,
)
from toolfleet_tasks.approvals.approvers import Approver
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
    `None`: its end is waited for. With `defer_approvals` one that people have to approve is `WaitsForApproval`; else that is its result.
    A call without an id of its framework's is never deferred: it could not be found again.
    """

    def __init__(
        self,
        fleet: ToolFleet,
        *,
        timeout: float | None = None,
        defer_after: float | None = None,
        defer_approvals: bool = False,
    ) -> None:
        self._fleet = fleet
        self._timeout = timeout
        self._defer_after = defer_after
        self._defer_approvals = defer_approvals

    async def call(
        self, asked: FrameworkCall, decision: Decision | None = None, approver: Approver | None = None
    ) -> ToolResult:
        """Bring the call's result. Raises `StillRunning` and `WaitsForApproval`, and nothing for what becomes of the call.

        A `decision` about a call that has waited before is the `approver`'s vote. About one that is made just now nobody has decided.
        """
        call, where, owner = asked.as_call(), asked.conversation, _owner(asked.caller)
        seconds = _sooner(self._timeout, asked.seconds)
        key, is_deferred = call.idempotency_key, self._defer_after is not None or self._defer_approvals
        if not is_deferred or key is None:
            return await self._fleet.call(
                call, asked.caller, conversation=where, timeout=seconds, on_progress=asked.on_progress
            )
        try:
            before = await asked_before(self._fleet, owner.user_id, key) if self._defer_approvals else None
            if before is not None:
                named = before, call.tool_name, asked.caller, decision, approver
                return as_spoken(await self.result_of(*named, asked.on_progress), call.spoken)
            handle = await self._fleet.begun_calls.begin(
                call, asked.caller, owner, conversation=where, timeout=seconds, waits_for_turn=True
            )
        except FleetUnavailable as exc:
            return as_spoken(fleet_results.fleet_unavailable(call.tool_name, str(exc)), call.spoken)
        try:
            if handle.has_joined or handle.waits_for_approval:
                await self._approved(handle, decision if handle.has_joined else None, approver, (owner.user_id, key))
        except FleetUnavailable as exc:
            unknown = fleet_results.outcome_unknown(call.tool_name, f"it waits for an approval: {exc}")
            return as_spoken(unknown, call.spoken)
        return as_spoken(await self._end_of(handle, asked.on_progress), call.spoken)

    async def asks_people(self, asked: FrameworkCall) -> bool:
        """Whether people have to decide about such a call: then it waits for them from now on. It is in no queue."""
        try:
            await self.decide(asked, None, None)
        except WaitsForApproval:
            return True
        except FleetUnavailable:  # whoever makes it is told so
            return False
        return False

    async def decide(self, asked: FrameworkCall, decision: Decision | None, approver: Approver | None) -> None:
        """Have the call wait for people, if they have to approve it, and make the decision the approver's vote. Its end is for `call`.

        Raises `WaitsForApproval` where they still have to decide, and `FleetUnavailable`.
        """
        call, owner = asked.as_call(), _owner(asked.caller)
        key = call.idempotency_key
        if key is None or not await self._fleet.approvals.rules(asked.tool.name, asked.caller):
            return
        before = await asked_before(self._fleet, owner.user_id, key)
        if before is not None:
            await voted(self._fleet, await approval_of(self._fleet, before), decision, approver)
            return
        handle = await self._fleet.begun_calls.begin(
            call, asked.caller, owner, conversation=asked.conversation, timeout=self._timeout
        )
        if handle.refusal is None:
            await self._approved(handle, decision if handle.has_joined else None, approver, (owner.user_id, key))
        handle.leave()

    async def result_of(
        self,
        call_id: str,
        tool_name: str,
        caller: Caller,
        decision: Decision | None = None,
        approver: Approver | None = None,
        on_progress: OnProgress | None = None,
    ) -> ToolResult:
        """The end of a call of this caller's that is `StillRunning`, or was `WaitsForApproval`, by its deadline. Never begins one.

        A `decision` is the `approver`'s vote. A call that is no longer known, or another's, has an unknown outcome. Raises
        `WaitsForApproval`, and `FleetUnavailable`.
        """
        handle = await self._fleet.begun_calls.attach(call_id, _owner(caller))
        if handle is None or handle.tool_name != tool_name:
            return await denied_before(self._fleet, call_id, tool_name, caller) or fleet_results.outcome_unknown(
                tool_name, "the fleet no longer knows the call."
            )
        try:
            await self._approved(handle, decision, approver)
            async with contextlib.AsyncExitStack() as stack:
                if on_progress is not None:
                    await stack.enter_async_context(telling(handle.progress(), on_progress))
                while (result := await handle.end_within(_LONGEST_SECONDS)) is None:
                    pass
            return result
        finally:
            handle.leave()

    async def _approved(
        self,
        handle: BegunHandle,
        decision: Decision | None,
        approver: Approver | None,
        key: tuple[str | None, str] | None = None,
    ) -> None:
        """Return once nobody has to approve the call any more. Raises `WaitsForApproval`, and `FleetUnavailable`.

        `key`: whose, and by what the call is found again.
        """
        if not self._defer_approvals:
            return
        try:
            await voted(self._fleet, await approval_of(self._fleet, handle.id, kept_for=key), decision, approver)
        except WaitsForApproval:
            handle.leave()
            raise

    async def _end_of(self, handle: BegunHandle, on_progress: OnProgress | None) -> ToolResult:
        """Of a call that the cancelled run takes back."""
        patience = self._defer_after
        async with contextlib.AsyncExitStack() as stack:
            if on_progress is not None:
                await stack.enter_async_context(telling(handle.progress(), on_progress))
            try:
                while (result := await handle.end_within(_LONGEST_SECONDS if patience is None else patience)) is None:
                    if patience is not None and await handle.is_kept_within(_CONFIRMATION_SECONDS):
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
