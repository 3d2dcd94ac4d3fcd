"""Answers the tools by which a model asks for its calls that go on, where its framework cannot wait for them by itself."""

from collections.abc import Mapping
from typing import Any

from toolfleet_registry.contracts import Caller, ToolResult
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_tasks.adapters.calling import AdapterCalls
from toolfleet_tasks.adapters.deferrals import DeferredStep, StillRunning
from toolfleet_tasks.calls.begun_calls import Owner
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.messages.following_tools import (
    CANCEL_TOOL,
    NO_ANSWER,
    OF_SOMEBODY_ELSE,
    STATUS_TOOL,
    UNKNOWN_CALL,
    WAIT_TOOL,
    WRONG_ARGUMENTS,
    asked_of,
    state_text,
)


class FollowingTools:
    """The tools of one caller, for the calls and the jobs of that caller. `longest`: seconds that one of them waits at most."""

    def __init__(self, fleet: ToolFleet, calls: AdapterCalls, caller: Caller, longest: float) -> None:
        self._fleet = fleet
        self._calls = calls
        self._caller = caller
        self._longest = longest

    async def run(self, name: str, arguments: Mapping[str, Any]) -> str | ToolResult:
        """Answer one of `FOLLOWING_TOOLS`: with a sentence, or with the end of the call. Raises `StillRunning` where it goes on."""
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
