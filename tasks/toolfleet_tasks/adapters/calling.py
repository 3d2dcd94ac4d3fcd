"""Calls the fleet for an agent framework: by key, within the run's time, and cancelled with the run."""

import asyncio
import contextlib
from collections.abc import Mapping

from toolfleet_registry.contracts import Caller, Conversation, EffectState, ErrorCode, ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import ENDED, Job, JobRefused, Poll
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.formats import as_spoken
from toolfleet_tasks.adapters.decisions import (
    Decision,
    WaitsForApproval,
    approval_of,
    asked_before,
    denied_before,
    voted,
)
from toolfleet_tasks.adapters.framework_call import DeferredStep, FrameworkCall, StillRunning
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.calls.begun_calls import BegunHandle, Owner
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.client.listeners import OnProgress, telling
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.ids import job_id_for

_TRIES, _JOB_PAUSE_SECONDS = 3, 0.5  # to make a job: under its key it is one, however often it is asked for
_SHORTEST_SECONDS, _JOB_LONGEST_SECONDS, _SLOWER = 0.1, 2.0, 1.5  # from one question for its end to the next
_NOT_BEGUN: frozenset[ErrorCode | None] = frozenset(
    {"permission_denied", "invalid_arguments", "unknown_tool", "unknown_module", "blocked_by_gate", "version_mismatch"}
)

_PAUSE_SECONDS = 0.5  # before Redis is asked once more
_CONFIRMATION_SECONDS = 5.0  # beyond the patience with a call: a restarted Redis is back by then
_take_backs = set[asyncio.Task[None]]()  # there are no other references to these

_LONGEST_SECONDS = 86_400.0
_ANOTHER = "the call that its run has kept was made with other arguments."


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
        """Return the step of the job for a call with a key: the job's id follows from the key."""
        return DeferredStep(self.id_of(call.idempotency_key, caller), call.tool_name, "job")

    def id_of(self, key: str | None, caller: Caller) -> str:
        """The id of the job that a call of the caller's under this key is made as."""
        return job_id_for(caller.user_id, key)

    async def end_of_new(
        self, call: ToolCall, caller: Caller, conversation: Conversation | None, patience: float
    ) -> ToolResult:
        """Start the job, unless the step has started it before, and wait up to `patience` for its end.

        Raises `StillRunning`.

        If the waiting task is cancelled, a job that it has started is cancelled.
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
            pause = min(pause * _SLOWER, _JOB_LONGEST_SECONDS)

    async def cancel(self, job_id: str, caller: Caller) -> Job | None:
        """End a job of the caller's; `None` for none."""
        return await self._fleet.jobs.cancel(job_id, caller)

    async def _made(self, call: ToolCall, caller: Caller, conversation: Conversation, job_id: str) -> Job:
        """Start the job. Its end wakes the conversation; without an id of one, a conversation of the job's own."""
        if conversation.conversation_id is None:
            conversation = conversation.model_copy(update={"conversation_id": job_id})
        for tried in range(_TRIES):
            try:
                poll = self._plans[call.tool_name]
                return await self._fleet.jobs.start(call, poll, conversation=conversation, caller=caller)
            except FleetUnavailable:
                if tried == _TRIES - 1 or not call.idempotency_key:
                    raise
                await asyncio.sleep(_JOB_PAUSE_SECONDS)
        raise AssertionError

    def _take_back(self, step: DeferredStep, caller: Caller) -> None:
        """Cancel a job in a task of its own: the cancelled run does not wait for that."""

        async def take_back() -> None:
            with contextlib.suppress(FleetUnavailable):
                await self.cancel(step.call_id, caller)

        task = asyncio.get_running_loop().create_task(take_back(), name="toolfleet-take-back")
        _take_backs.add(task)
        task.add_done_callback(_take_backs.discard)


def _result_of(job: Job, tool_name: str) -> ToolResult:
    """Return a job's end as a call's result: a framework does not repeat it by itself, since it is unknown how far the work has come."""
    if job.state == "completed":
        result = ToolResult.ok(tool_name, job.result)
    else:
        said = {"failed": "failed", "timed_out": "did not end in time", "cancelled": "was cancelled"}[job.state]
        code: ErrorCode = job.error_code or ("module_error" if job.state == "failed" else job.state)  # type: ignore[assignment] # both are codes
        effect: EffectState = "none" if code in _NOT_BEGUN and not job.polls else "unknown"
        why = f"The job {job.job_id} {said}." if job.error is None else f"The job {job.job_id} {said}: {job.error}"
        result = ToolResult.failed(tool_name, code, why, effect_state=effect)
    return result.model_copy(update={"audit": result.audit.model_copy(update={"call_id": job.job_id})})


class AdapterCalls:
    """Makes the calls of one adapter, and cancels each whose awaiting task is cancelled.

    `timeout`: seconds for a call, `None` for the fleet's own bound. `defer_after`: after how many seconds a call is
    `StillRunning`; `None`: its end is waited for. With `defer_approvals` a call that needs an approval is
    `WaitsForApproval`; otherwise that is its result. Calls of the tools in `jobs` are made as jobs, which are
    `StillRunning` at once without `defer_after`. A call without an id of its framework is never deferred: it could not
    be found again.
    """

    def __init__(
        self,
        fleet: ToolFleet,
        *,
        timeout: float | None = None,
        defer_after: float | None = None,
        defer_approvals: bool = False,
        jobs: Mapping[str, Poll | None] | None = None,
    ) -> None:
        self._fleet = fleet
        self._timeout = timeout
        self._defer_after = defer_after
        self._defer_approvals = defer_approvals
        self._jobs = AdapterJobs(fleet, jobs)

    @property
    def is_deferring(self) -> bool:
        """Whether a call may continue without its run."""
        return self._defer_after is not None or self._defer_approvals or bool(self._jobs)

    def patience(self, tool_name: str) -> float | None:
        """Return how many seconds a run waits for the end of such a call; `None`: without a limit."""
        return 0.0 if self._defer_after is None and tool_name in self._jobs else self._defer_after

    async def call(
        self, asked: FrameworkCall, decision: Decision | None = None, approver: Approver | None = None
    ) -> ToolResult:
        """Make the call and return its result.

        Raises `StillRunning` and `WaitsForApproval`, and nothing for failures of the call.

        A `decision` about a call that has waited before is the `approver`'s vote; it is ignored for a new call.
        """
        call, where = asked.as_call(), asked.conversation
        key = call.idempotency_key
        if call.tool_name in self._jobs:
            patience = self.patience(call.tool_name) or 0.0
            return as_spoken(await self._jobs.end_of_new(call, asked.caller, where, patience), call.spoken)
        if not self.is_deferring or key is None:
            seconds = _sooner(self._timeout, asked.seconds)
            return await self._fleet.call(
                call, asked.caller, conversation=where, timeout=seconds, on_progress=asked.on_progress
            )
        try:
            step = await self.step_before(asked)
            if step is not None:
                return await self._resumed_here(step, asked, decision, approver)
            handle = await self._begun(asked, call, waits_for_turn=True)
        except FleetUnavailable as exc:
            return as_spoken(fleet_results.fleet_unavailable(call.tool_name, str(exc)), call.spoken)
        try:
            if handle.has_joined or handle.waits_for_approval:
                await self._approved(handle, decision if handle.has_joined else None, approver, (asked.user_id, key))
        except FleetUnavailable as exc:
            unknown = fleet_results.outcome_unknown(call.tool_name, f"it waits for an approval: {exc}")
            return as_spoken(unknown, call.spoken)
        return as_spoken(await self._end_of(handle, key, asked), call.spoken)

    async def _resumed_here(
        self, step: DeferredStep, asked: FrameworkCall, decision: Decision | None, approver: Approver | None
    ) -> ToolResult:
        """Resume a repeated step, and defer it again while the fleet is away: its call has been started."""
        patience = self.patience(step.tool_name)
        try:
            return await self.resumed(step, asked, decision, approver, patience=patience)
        except FleetUnavailable as exc:
            if patience is not None:
                raise StillRunning(step) from exc
            return fleet_results.outcome_unknown(asked.name, f"it was made before, and goes on: {exc}")

    async def asks_people(self, asked: FrameworkCall) -> bool:
        """Return whether such a call needs an approval: then it waits for that from now on. It is in no queue."""
        try:
            await self.decide(asked, None, None)
        except WaitsForApproval:
            return True
        except FleetUnavailable:  # its caller is told so
            return False
        return False

    async def decide(self, asked: FrameworkCall, decision: Decision | None, approver: Approver | None) -> None:
        """Have the call wait for people, if they have to approve it, and make the decision the approver's vote. Its end is for `call`.

        Raises `WaitsForApproval` where they still have to decide, and `FleetUnavailable`.
        """
        call = asked.as_call()
        key = call.idempotency_key
        if key is None or not await self._fleet.approvals.rules(asked.tool.name, asked.caller):
            return
        before = await self.step_before(asked)
        if before is not None:
            await voted(self._fleet, await approval_of(self._fleet, before.call_id), decision, approver)
            return
        handle = await self._begun(asked, call)
        if handle.refusal is None:
            await self._approved(handle, decision if handle.has_joined else None, approver, (asked.user_id, key))
        handle.leave()

    async def step_before(self, asked: FrameworkCall) -> DeferredStep | None:
        """The call that the same step has made before, if that was deferred; `None` for none. Raises `FleetUnavailable`.

        The fleet knows it for longer than the call's key.
        """
        call = asked.as_call()
        if call.idempotency_key is None:
            return None
        if call.tool_name in self._jobs:
            return self._jobs.step(call, asked.caller)
        found = await asked_before(self._fleet, asked.user_id, call.idempotency_key)
        return None if found is None else DeferredStep(found, call.tool_name)

    async def resumed(
        self,
        step: DeferredStep,
        asked: FrameworkCall,
        decision: Decision | None = None,
        approver: Approver | None = None,
        *,
        patience: float | None = None,
    ) -> ToolResult:
        """Resume the framework's call as `result_of` does, with its own names and arguments."""
        call = asked.as_call()
        result = await self.result_of(
            step,
            asked.caller,
            decision,
            approver,
            key=call.idempotency_key,
            patience=patience,
            on_progress=asked.on_progress,
        )
        return as_spoken(result, call.spoken)

    async def result_of(
        self,
        step: DeferredStep,
        caller: Caller,
        decision: Decision | None = None,
        approver: Approver | None = None,
        *,
        key: str | None = None,
        patience: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> ToolResult:
        """The end of a call of this caller's that was deferred, by its deadline. Never begins one.

        A `decision` is the `approver`'s vote. A call that is no longer known, or another's, has an unknown outcome; so has one that
        was made under another `key`: with other arguments. Raises `StillRunning` where it goes on after `patience` seconds,
        `WaitsForApproval`, and `FleetUnavailable`.
        """
        if step.kind == "job":
            if key is not None and self._jobs.id_of(key, caller) != step.call_id:
                return fleet_results.outcome_unknown(step.tool_name, _ANOTHER)
            return await self._jobs.end_of(step, caller, patience)
        handle = await self._fleet.begun_calls.attach(step.call_id, _owner(caller))
        if handle is None or handle.tool_name != step.tool_name:
            denied = await denied_before(self._fleet, step.call_id, step.tool_name, caller)
            return denied or fleet_results.outcome_unknown(step.tool_name, "the fleet no longer knows the call.")
        try:
            if key is not None and handle.published is not None and handle.published.idempotency_key != key:
                return fleet_results.outcome_unknown(step.tool_name, _ANOTHER)
            await self._approved(handle, decision, approver)
            async with contextlib.AsyncExitStack() as stack:
                if on_progress is not None:
                    await stack.enter_async_context(telling(handle.progress(), on_progress))
                while (result := await handle.end_within(_LONGEST_SECONDS if patience is None else patience)) is None:
                    if patience is not None:
                        raise StillRunning(step)
            return result
        finally:
            handle.leave()

    async def _begun(self, asked: FrameworkCall, call: ToolCall, *, waits_for_turn: bool = False) -> BegunHandle:
        seconds = _sooner(self._timeout, asked.seconds)
        return await self._fleet.begun_calls.begin(
            call,
            asked.caller,
            _owner(asked.caller),
            conversation=asked.conversation,
            timeout=seconds,
            waits_for_turn=waits_for_turn,
        )

    async def _approved(
        self,
        handle: BegunHandle,
        decision: Decision | None,
        approver: Approver | None,
        key: tuple[str | None, str] | None = None,
    ) -> None:
        """Return once the call needs no approval any more. Raises `WaitsForApproval`, and `FleetUnavailable`.

        `key`: the user and the key by which the call is found again.
        """
        if not self._defer_approvals:
            return
        try:
            await voted(self._fleet, await approval_of(self._fleet, handle.id, kept_for=key), decision, approver)
        except WaitsForApproval:
            handle.leave()
            raise

    async def _end_of(self, handle: BegunHandle, key: str, asked: FrameworkCall) -> ToolResult:
        """Wait for the end of a call, which is cancelled with the run."""
        patience = self._defer_after
        async with contextlib.AsyncExitStack() as stack:
            if asked.on_progress is not None:
                await stack.enter_async_context(telling(handle.progress(), asked.on_progress))
            try:
                while (result := await handle.end_within(_LONGEST_SECONDS if patience is None else patience)) is None:
                    if patience is not None and await self._is_kept(handle, key, asked):
                        raise StillRunning(DeferredStep(handle.id, handle.tool_name))
            except asyncio.CancelledError:
                _take_back(handle)
                raise
        return result

    async def _is_kept(self, handle: BegunHandle, key: str, asked: FrameworkCall) -> bool:
        """Return whether the same step will find the call again, even if its key is used otherwise: else its end is waited for.

        A call that has ended meanwhile may have ended as another call with its key: then it cannot be found by its own
        id.
        """
        if not await handle.is_kept_within(_CONFIRMATION_SECONDS) or handle.has_ended:
            return False
        try:
            seconds = _sooner(self._timeout, asked.seconds) or 0.0
            await self._fleet.begun_calls.keep_deferred(_owner(asked.caller), key, handle.id, seconds=seconds)
        except FleetUnavailable:
            await asyncio.sleep(_PAUSE_SECONDS)
            return False
        return True


def _owner(caller: Caller) -> Owner:
    return Owner(caller.user_id)


def _sooner(*seconds: float | None) -> float | None:
    known = [each for each in seconds if each is not None]
    return min(known) if known else None


def _take_back(handle: BegunHandle) -> None:
    """Cancel a job in a task of its own: the cancelled run does not wait for that."""
    task = asyncio.get_running_loop().create_task(handle.cancel(), name="toolfleet-take-back")
    _take_backs.add(task)
    task.add_done_callback(_take_backs.discard)
