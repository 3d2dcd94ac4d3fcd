"""Runs the calls of some tools as jobs: each is found by its call's key, and begun once."""

import asyncio
import contextlib
from collections.abc import Mapping

from toolfleet_registry.contracts import Caller, Conversation, EffectState, ErrorCode, ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import ENDED, Job, JobRefused, Poll
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_tasks.adapters.deferrals import DeferredStep, StillRunning
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.ids import job_id_for

_TRIES, _PAUSE_SECONDS = 3, 0.5  # to make a job: under its key it is one, however often it is asked for
_SHORTEST_SECONDS, _LONGEST_SECONDS, _SLOWER = 0.1, 2.0, 1.5  # from one question for its end to the next
_NOT_BEGUN: frozenset[ErrorCode | None] = frozenset(
    {"permission_denied", "invalid_arguments", "unknown_tool", "unknown_module", "blocked_by_gate", "version_mismatch"}
)
_take_backs = set[asyncio.Task[None]]()  # nobody else holds these


class AdapterJobs:
    """The jobs of one adapter. `plans`: how the end of a tool's call is found, by its name; `None`: the call's own end is the job's."""

    def __init__(self, fleet: ToolFleet, plans: Mapping[str, Poll | None] | None) -> None:
        self._fleet = fleet
        self._plans = dict(plans or {})

    def __contains__(self, tool_name: str) -> bool:
        return tool_name in self._plans

    def __bool__(self) -> bool:
        return bool(self._plans)

    def step(self, call: ToolCall, caller: Caller) -> DeferredStep:
        """Where the job of a call with a key is, or would be: its id follows from the key."""
        return DeferredStep(self.id_of(call.idempotency_key, caller), call.tool_name, "job")

    def id_of(self, key: str | None, caller: Caller) -> str:
        """The id of the job that a call of the caller's under this key is made as."""
        return job_id_for(caller.user_id, key)

    async def end_of_new(
        self, call: ToolCall, caller: Caller, conversation: Conversation | None, patience: float
    ) -> ToolResult:
        """Make the job, unless the step has made it before, and wait so long for its end. Raises `StillRunning`.

        Whoever is cancelled while waiting takes back a job that they have made.
        """
        step = self.step(call, caller)
        try:
            if call.idempotency_key and await self._fleet.jobs.get(step.call_id, caller) is not None:
                return await self.end_of(step, caller, patience)
        except FleetUnavailable as exc:
            return fleet_results.fleet_unavailable(call.tool_name, str(exc))
        try:
            job = await self._made(call, caller, conversation or Conversation(), step.call_id)
        except JobRefused as exc:
            return exc.result
        except FleetUnavailable as exc:
            return fleet_results.outcome_unknown(call.tool_name, f"its job may have been made: {exc}")
        made = DeferredStep(job.job_id, call.tool_name, "job")
        try:
            return await self.end_of(made, caller, patience)
        except asyncio.CancelledError:
            self._take_back(made, caller)
            raise
        except FleetUnavailable:
            raise StillRunning(made) from None

    async def end_of(self, step: DeferredStep, caller: Caller, patience: float | None) -> ToolResult:
        """Wait so long for the end of a job of the caller's; `None`: until it is there. Never makes one.

        A job that is no longer known, or another's, has an unknown outcome. Raises `StillRunning` and `FleetUnavailable`.
        """
        loop, pause = asyncio.get_running_loop(), _SHORTEST_SECONDS
        until = None if patience is None else loop.time() + patience
        while True:
            job = await self._fleet.jobs.get(step.call_id, caller)
            if job is None:
                return fleet_results.outcome_unknown(step.tool_name, "the fleet no longer knows the job.")
            if job.state in ENDED:
                return _result_of(job, step.tool_name)
            left = pause if until is None else until - loop.time()
            if left <= 0:
                raise StillRunning(step)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * _SLOWER, _LONGEST_SECONDS)

    async def cancel(self, job_id: str, caller: Caller) -> Job | None:
        """End a job of the caller's; `None` for none."""
        return await self._fleet.jobs.cancel(job_id, caller)

    async def _made(self, call: ToolCall, caller: Caller, conversation: Conversation, job_id: str) -> Job:
        """Its end wakes the conversation; where that has no id, one that is the job's alone."""
        if conversation.conversation_id is None:
            conversation = conversation.model_copy(update={"conversation_id": job_id})
        for tried in range(_TRIES):
            try:
                poll = self._plans[call.tool_name]
                return await self._fleet.jobs.start(call, poll, conversation=conversation, caller=caller)
            except FleetUnavailable:
                if tried == _TRIES - 1 or not call.idempotency_key:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
        raise AssertionError

    def _take_back(self, step: DeferredStep, caller: Caller) -> None:
        """In a task of its own: whoever is cancelled waits no longer."""

        async def take_back() -> None:
            with contextlib.suppress(FleetUnavailable):
                await self.cancel(step.call_id, caller)

        task = asyncio.get_running_loop().create_task(take_back(), name="toolfleet-take-back")
        _take_backs.add(task)
        task.add_done_callback(_take_backs.discard)


def _result_of(job: Job, tool_name: str) -> ToolResult:
    """A job's end as that of a call: a framework makes nothing anew by itself, for nobody knows how far the work has come."""
    if job.state == "completed":
        result = ToolResult.ok(tool_name, job.result)
    else:
        said = {"failed": "failed", "timed_out": "did not end in time", "cancelled": "was cancelled"}[job.state]
        code: ErrorCode = job.error_code or ("module_error" if job.state == "failed" else job.state)  # type: ignore[assignment] # both are codes
        effect: EffectState = "none" if code in _NOT_BEGUN and not job.polls else "unknown"
        why = f"The job {job.job_id} {said}." if job.error is None else f"The job {job.job_id} {said}: {job.error}"
        result = ToolResult.failed(tool_name, code, why, effect_state=effect)
    return result.model_copy(update={"audit": result.audit.model_copy(update={"call_id": job.job_id})})
