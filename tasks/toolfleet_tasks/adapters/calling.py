"""Calls the fleet for an agent framework: by key, within the run's time, cancelled with the run, and with what people decide there."""

import asyncio
import contextlib
import hashlib
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar, get_args

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import (
    Caller,
    Conversation,
    EffectState,
    ErrorCode,
    ResultFile,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.contracts.calls import Spoken
from toolfleet_registry.contracts.jobs import ENDED, Job, JobRefused, Poll
from toolfleet_registry.contracts.names import provider_name
from toolfleet_registry.errors import ApprovalNotTaken, FleetUnavailable
from toolfleet_registry.formats import as_spoken, from_result
from toolfleet_registry.formats.calls import field_of, spoken_arguments
from toolfleet_registry.formats.dialects import meant_tool, near_names
from toolfleet_registry.formats.on_demand import CALL_TOOL, MOST_BYTES, MOST_TOOLS, SEARCH_TOOL, ToolsOnDemand
from toolfleet_registry.formats.results import shown_files
from toolfleet_registry.policy.hints import hint_for
from toolfleet_registry.policy.redaction import redacted
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_tasks.approvals.approvers import Approver, missing_votes
from toolfleet_tasks.approvals.records import StoredApproval
from toolfleet_tasks.calls.begun_calls import BegunHandle, Owner
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.client.listeners import OnProgress, telling
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.ids import job_id_for

C = TypeVar("C")
T = TypeVar("T")
_MOST_CALLERS = 64  # kinds of callers whose listings are kept
Kind = Literal["call", "job", "approval"]
Loading = Literal["all", "native", "search"]
"""The ways in which tools reach a model: all definitions at once, the framework's own deferred loading, or a search and `call_tool`."""
CALL: Final = "toolfleet_call_id"
TOOL: Final = "toolfleet_tool"
RUN: Final = "toolfleet_run_id"
APPROVAL: Final = "toolfleet_approval"
_KIND: Final = "kind"
_KINDS: Final[Mapping[object, Kind]] = {"call": "call", "job": "job", "approval": "approval"}
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
_READ_SECONDS = 5.0
_SHOWN = {"permission", "users", "keys", "quorum", "self_approval"}
_NOBODY = "The program names no approver in whose name that is decided."
_UNNAMED = "A decision names what was seen: 'id' and 'digest', as the question has them."
_NO_DECISION = "A decision is {'decision': 'approve' | 'reject', 'id', 'digest', 'reason', 'arguments'}; the last two may be left out."
_ANOTHER_REQUEST = "The decision is about another call."


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

    @property
    def user_id(self) -> str | None:
        """The user of the call."""
        return self.caller.user_id

    @property
    def key(self) -> str | None:
        """Return the key by which the call is found again: see `call_key`."""
        return self.keys.get(self.tool.name)

    @property
    def keys(self) -> Mapping[str, str]:
        """Return the key under each name of the tool: a call that waits was made before the tool was renamed."""
        made = {name: call_key(self.run_id, self.call_id, name, self.arguments) for name in self.tool.names}
        return {name: key for name, key in made.items() if key is not None}

    def as_call(self) -> ToolCall:
        """Return the call with its key. Its errors have the names that the model was shown."""
        spoken = Spoken("mcp", self.name, self.tool)
        return ToolCall(tool_name=self.tool.name, arguments=self.arguments, idempotency_key=self.key, spoken=spoken)


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a call, made in a framework. `arguments` replace the call's arguments of their names.

    `call_id` and `seen`: the call, and the digest of what the approver has seen, as in `ApprovalService.approve`.
    `fault`: why it is invalid, if it is.
    """

    approves: bool
    reason: str = ""
    arguments: Mapping[str, Any] | None = None
    call_id: str | None = None
    seen: str | None = None
    fault: str | None = None

    @classmethod
    def of(cls, value: object) -> "Decision | None":
        """Parse an application's decision; return `None` for any other value that a framework is resumed with, such as `True`."""
        if not isinstance(value, Mapping) or "decision" not in value:
            return None
        said, reason, arguments = value["decision"], value.get("reason") or "", value.get("arguments")
        call_id, seen = value.get("id"), value.get("digest")
        if said not in ("approve", "reject") or not (isinstance(reason, str) and isinstance(arguments, Mapping | None)):
            return cls(approves=False, fault=_NO_DECISION)
        # Where a step asks for several calls, what it is resumed with may change places.
        if not (isinstance(call_id, str) and isinstance(seen, str)):
            return cls(approves=False, fault=_UNNAMED)
        return cls(said == "approve", reason, arguments, call_id, seen)


@dataclass(frozen=True, slots=True)
class DeferredStep:
    """A step whose call continues as `call_id`, which is the job's id if it is a job.

    An `approval` is a call that waits for people.

    `run_id`: the run of its key, if the framework does not repeat it.
    """

    call_id: str
    tool_name: str
    kind: Kind = "call"
    run_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a framework stores, as metadata or as an interrupt's value."""
        known = {_KIND: self.kind, CALL: self.call_id, TOOL: self.tool_name}
        return known if self.run_id is None else {**known, RUN: self.run_id}

    @classmethod
    def of(cls, known: object) -> "DeferredStep | None":
        """Parse the output of `to_json`; `None` for anything else."""
        if not isinstance(known, Mapping):
            return None
        call_id, tool_name, run_id = known.get(CALL), known.get(TOOL), known.get(RUN)
        said = known.get(_KIND, "call")
        kind = _KINDS.get(said) if isinstance(said, str) else None
        if not (isinstance(call_id, str) and isinstance(tool_name, str)) or kind is None:
            return None
        return cls(call_id, tool_name, kind, run_id if isinstance(run_id, str) else None)


class StillRunning(Exception):
    """The call continues. Any process can ask for its end by the `step`, and the same call made again joins it."""

    def __init__(self, step: DeferredStep) -> None:
        super().__init__(f"The {step.kind} {step.call_id!r} of {step.tool_name!r} goes on.")
        self.step = step


class WaitsForApproval(Exception):
    """The call waits for people: `found` is what they are asked, `refusal` why the last decision was not taken, if there was one."""

    def __init__(self, found: StoredApproval, refusal: str | None = None) -> None:
        super().__init__(f"Call {found.approval_id!r} of {found.request.tool_name!r} waits for an approval.")
        self.found = found
        self.refusal = refusal

    @property
    def step(self) -> DeferredStep:
        """Return the part of the call that its framework stores."""
        return DeferredStep(self.found.approval_id, self.found.request.tool_name, "approval")

    def to_json(self) -> dict[str, Any]:
        """Return what a framework stores of the call, with the question.

        Returns:
            JSON that `DeferredStep.of` reads.

        """
        return {**self.step.to_json(), APPROVAL: self.question()}

    def question(self) -> dict[str, Any]:
        """Return what an application needs for a decision by people.

        Returns:
            JSON: the approval's `id`, the `tool`, its `arguments` with sensitive values hidden, the `digest` that a
            decision names, the `approvers`, how many votes are `missing`, `expires_at` in seconds since the epoch, and
            the `refusal` of the last decision, if there is one.

        """
        request = self.found.request
        who = [rule.model_dump(mode="json", include=_SHOWN) for rule in request.rules]
        return {
            "id": self.found.approval_id,
            "tool": request.tool_name,
            "arguments": redacted(request.arguments, request.sensitive),
            "digest": request.binding,
            "approvers": who,
            "missing": missing_votes(request, self.found.votes),
            "expires_at": request.expires_at,
            **({} if self.refusal is None else {"refusal": self.refusal}),
        }

    def result(self) -> ToolResult:
        """Return the result of the call for a framework that cannot ask at this moment.

        Returns:
            An `approval_required` result, with the refusal of the last decision in its text.

        """
        result = fleet_results.approval_required(
            self.found.call.tool_name, self.found.call.call_id, expires_at=self.found.request.expires_at
        )
        error = f"{result.error} The last decision was not taken: {self.refusal}"
        return result if self.refusal is None else result.model_copy(update={"error": error})


class AdapterCalls:
    """The calls of one adapter. Each whose awaiting task is cancelled is cancelled.

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
        """Return whether a call may continue without its run."""
        return self._defer_after is not None or self._defer_approvals or bool(self._jobs)

    def patience(self, tool: ToolDefinition) -> float | None:
        """Return how many seconds a run waits for the end of such a call; `None`: without a limit."""
        return 0.0 if self._defer_after is None and tool in self._jobs else self._defer_after

    async def call(
        self, asked: FrameworkCall, decision: Decision | None = None, approver: Approver | None = None
    ) -> ToolResult:
        """Make the call and return its result.

        Raises `StillRunning` and `WaitsForApproval`, and nothing for failures of the call.

        A `decision` about a call that has waited before is the `approver`'s vote; it is ignored for a new call.
        """
        call, where = asked.as_call(), asked.conversation
        key = call.idempotency_key
        if asked.tool in self._jobs:
            patience = self.patience(asked.tool) or 0.0
            return as_spoken(await self._jobs.end_of_new(asked, patience), call.spoken)
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
        patience = self.patience(asked.tool)
        try:
            return await self.resumed(step, asked, decision, approver, patience=patience)
        except FleetUnavailable as exc:
            if patience is not None:
                raise StillRunning(step) from exc
            return fleet_results.outcome_unknown(asked.name, f"it was made before, and goes on: {exc}")

    async def asks_people(self, asked: FrameworkCall) -> bool:
        """Have a call wait for people if it needs an approval, and return whether it does. It is in no queue then."""
        try:
            await self.decide(asked, None, None)
        except WaitsForApproval:
            return True
        except FleetUnavailable:  # its caller is told so
            return False
        return False

    async def decide(self, asked: FrameworkCall, decision: Decision | None, approver: Approver | None) -> None:
        """Have the call wait for people, if they have to approve it, and make the decision the approver's vote.

        `call` brings its end.

        Raises `WaitsForApproval` where they still have to decide, and `FleetUnavailable`.
        """
        call = asked.as_call()
        key = call.idempotency_key
        is_job = asked.tool in self._jobs
        if key is None or is_job or not await self._fleet.approvals.rules(asked.tool.name, asked.caller):
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
        """Return the call that the same step has made before, if it was deferred; otherwise `None`.

        Raises `FleetUnavailable`.

        The fleet knows it for longer than the call's key.
        """
        if asked.tool in self._jobs:
            return await self._jobs.step_before(asked)
        for name, key in asked.keys.items():
            if (found := await asked_before(self._fleet, asked.user_id, key)) is not None:
                return DeferredStep(found, name)
        return None

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
            key=asked.keys.get(step.tool_name, call.idempotency_key),
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
        """Return the end of a deferred call of this caller's, by its deadline. Never starts one.

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
        """Return once the call no longer needs an approval. Raises `WaitsForApproval`, and `FleetUnavailable`.

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
        """Return whether the same step will find the call again, even if its key is used otherwise.

        If not, its end is waited for.

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


class AdapterJobs:
    """The jobs of one adapter.

    `plans` tells by a tool's name how its job's end is found; `None`: the call's own end is the job's.
    """

    def __init__(self, fleet: ToolFleet, plans: Mapping[str, Poll | None] | None) -> None:
        self._fleet = fleet
        self._plans = dict(plans or {})

    def __contains__(self, tool: ToolDefinition) -> bool:
        return any(name in self._plans for name in tool.names)

    def __bool__(self) -> bool:
        return bool(self._plans)

    async def step_before(self, asked: FrameworkCall) -> DeferredStep | None:
        """Return the job that the same step has started before, whose id follows from the key. Raises `FleetUnavailable`."""
        for name, key in asked.keys.items():
            step = DeferredStep(self.id_of(key, asked.caller), name, "job")
            if await self._fleet.jobs.get(step.call_id, asked.caller) is not None:
                return step
        return None

    def id_of(self, key: str | None, caller: Caller) -> str:
        """Return the id of the job that a call of the caller's under this key becomes."""
        return job_id_for(caller.user_id, key)

    async def end_of_new(self, asked: FrameworkCall, patience: float) -> ToolResult:
        """Start the job, unless the step has started it before, and wait up to `patience` for its end.

        Raises `StillRunning`.

        If the waiting task is cancelled, a job that it has started is cancelled.
        """
        call, caller = asked.as_call(), asked.caller
        try:
            if (step := await self.step_before(asked)) is not None:
                return await self.end_of(step, caller, patience)
        except FleetUnavailable as exc:
            return fleet_results.fleet_unavailable(call.tool_name, str(exc))
        try:
            job = await self._made(asked, call)
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
        """Wait for the end of a job of the caller's for some seconds, or without a limit (`None`). Never starts one.

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
        """Cancel a job of the caller's. Returns `None` if there is none."""
        return await self._fleet.jobs.cancel(job_id, caller)

    async def _made(self, asked: FrameworkCall, call: ToolCall) -> Job:
        """Start the job. Its end wakes the conversation; if that has no id, a conversation of the job's own."""
        conversation = asked.conversation or Conversation()
        if conversation.conversation_id is None:
            job_id = self.id_of(call.idempotency_key, asked.caller)
            conversation = conversation.model_copy(update={"conversation_id": job_id})
        poll = next(self._plans[name] for name in asked.tool.names if name in self._plans)
        for tried in range(_TRIES):
            try:
                return await self._fleet.jobs.start(call, poll, conversation=conversation, caller=asked.caller)
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


class ToolOffers(Generic[T]):
    """The tools of a fleet as `make` writes them, by the names under which providers take them.

    `list_tools` returns those that a caller may use, sorted by name. `where` says which of them are offered. Nothing is
    asked of Redis: a listing is compared with the one before, and while nothing has changed the answer is the same object.
    """

    def __init__(
        self,
        list_tools: Callable[[Caller], Awaitable[list[ToolDefinition]]],
        make: Callable[[ToolDefinition, str], T],
        where: Callable[[ToolDefinition], bool] | None = None,
    ) -> None:
        self._list_tools = list_tools
        self._make = make
        self._where = where
        self._kept: dict[object, tuple[list[ToolDefinition], Mapping[str, T]]] = {}

    async def of(self, caller: Caller) -> Mapping[str, T]:
        """Return this caller's present offers, sorted by name.

        Raises `FleetUnavailable` if nothing is known yet, and Redis is silent.
        """
        tools = await self._list_tools(caller)
        kind = _kind_of(caller)
        before, offers = self._kept.get(kind, ([], None))
        if offers is not None and tools == before:
            return offers
        known = {tool.name: tool for tool in before}
        made: dict[str, T] = {}
        for tool in tools if self._where is None else filter(self._where, tools):
            name = provider_name(tool.name)
            is_same = (seen := known.get(tool.name)) is tool or seen == tool
            made[name] = offers[name] if is_same and offers and name in offers else self._make(tool, name)
        while len(self._kept) >= _MOST_CALLERS:
            self._kept.pop(next(iter(self._kept)))
        listing: Mapping[str, T] = MappingProxyType(made)
        self._kept[kind] = tools, listing
        return listing


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """A caller's tools by their names for a model: `shown` are not deferred, `demand` is for the others."""

    tools: Mapping[str, ToolDefinition]
    shown: frozenset[str]
    load: Loading
    demand: ToolsOnDemand

    def called(self, name: str, arguments: Any) -> ToolCall:
        """Return the call that a model asks for, also by a former name: without a tool in `spoken`, if none has the name.

        It may be by `call_tool` where that is not shown: it was before, while there were more tools.
        """
        if name == CALL_TOOL and self.load != "all":
            return self.demand.call({"name": CALL_TOOL, "arguments": arguments})
        tool = self.tools.get(name) or meant_tool(name, self.tools.values())
        said = name if tool is None else tool.name
        return ToolCall(tool_name=said, arguments=arguments, spoken=Spoken("mcp", name, tool))

    def own(self) -> list[dict[str, Any]]:
        """Return `search_tools` and `call_tool` as MCP has them; none where all tools are listed, or the framework defers them."""
        return list(self.demand.offers) if self.load == "search" else []


class ToolLoading:
    """Decides which tools a model is shown at once, and searches the others for it, as its caller may see them."""

    def __init__(
        self,
        fleet: ToolFleet,
        load: Loading,
        always: Callable[[ToolDefinition], bool] | None,
        where: Callable[[ToolDefinition], bool] | None,
    ) -> None:
        if load not in get_args(Loading):
            raise ValueError(f"There is no load {load!r}; there are: {', '.join(get_args(Loading))}.")
        self._fleet, self._load, self._always = fleet, load, always
        self._tools = ToolOffers(fleet.tools, lambda tool, _: tool, where)
        self._kept: dict[object, OfferedTools] = {}

    def defers(self, tool: ToolDefinition) -> bool:
        """Return whether the model finds the tool by a search."""
        return self._load != "all" and not (self._always is not None and self._always(tool))

    async def of(self, caller: Caller) -> OfferedTools:
        """Return the caller's present tools. While nothing changes, the same object."""
        tools = await self._tools.of(caller)
        kind = _kind_of(caller)
        listing = self._kept.get(kind)
        if listing is None or listing.tools is not tools:
            if self._load == "all":
                listing = OfferedTools(tools, frozenset(tools), "all", ToolsOnDemand((), "mcp"))
            else:  # takes 0.2 s for thousands of tools
                listing = await asyncio.to_thread(self._deferred, tools)
            while len(self._kept) >= _MOST_CALLERS:
                self._kept.pop(next(iter(self._kept)))
            self._kept[kind] = listing
        return listing

    async def found(self, query: str, caller: Caller) -> list[ToolDefinition]:
        """Search all the caller's tools: an answer then takes the best of those that are offered."""
        return await self._fleet.search(query, caller, limit=sys.maxsize)

    async def answer(self, arguments: Any, caller: Caller) -> str:
        """Return the answer to a call of `search_tools`: the definitions of what is found."""
        demand, call = (await self.of(caller)).demand, {"name": SEARCH_TOOL, "arguments": arguments}
        asked = demand.search(call)
        found = [] if asked is None else await self.found(asked.query, caller)
        return str(demand.answer(call, found)["content"][0]["text"])

    def _deferred(self, tools: Mapping[str, ToolDefinition]) -> OfferedTools:
        load: Loading = "search" if self._load == "native" and _is_too_much(tools.values()) else self._load
        shown = frozenset(name for name, tool in tools.items() if not self.defers(tool))
        return OfferedTools(tools, shown, load, ToolsOnDemand(tools.values(), "mcp"))


def inner_arguments(arguments: Any) -> Any:
    """Return the arguments that `call_tool` passes on, as the call has them: see `ToolsOnDemand.call`."""
    return spoken_arguments(field_of(spoken_arguments(arguments), "arguments"))


def _is_too_much(tools: Collection[ToolDefinition]) -> bool:
    """Return whether a request with all these tools and a search would be too large."""
    sizes = (len(json.dumps([tool.name, tool.description, input_schema(tool)])) for tool in tools)
    return len(tools) >= MOST_TOOLS or sum(sizes) > MOST_BYTES


def call_key(run_id: str | None, call_id: str | None, tool_name: str, arguments: Any) -> str | None:
    """Return the idempotency key of one tool call: 64 hex digits. `None` if the framework has given it no id.

    The ids alone are not enough: models repeat a call's id within one run, with other arguments. `run_id` separates
    runs whose model restarts its count; `None` if call ids are unique by themselves.
    """
    if not call_id:
        return None
    try:
        text = json.dumps([run_id, call_id, tool_name, arguments], sort_keys=True, separators=(",", ":"), default=str)
    except (RecursionError, TypeError, ValueError):  # arguments that no call can have, and that are refused
        text = json.dumps([run_id, call_id, tool_name])
    return hashlib.sha256(text.encode()).hexdigest()


def caller_of(caller: Caller | Callable[[C], Caller], context: C) -> Caller:
    """Return the run's caller: a fixed one, or the result of a function of the run's context."""
    return caller if isinstance(caller, Caller) else caller(context)


def conversation_of(
    conversation: Conversation | Callable[[C], Conversation | None] | None, context: C
) -> Conversation | None:
    """Return the conversation of the run's calls: a fixed one, or the result of a function of the run's context."""
    return conversation(context) if callable(conversation) else conversation


def in_run(conversation: Conversation | None, run_id: str | None) -> Conversation | None:
    """Return the conversation with the framework's own run, if it names none: a profile's `run_limit` counts by it."""
    if run_id is None or (conversation is not None and conversation.run_id is not None):
        return conversation
    return (conversation or Conversation()).model_copy(update={"run_id": run_id})


def gone_tool(name: str) -> ToolDefinition:
    """Return the tool of a call that waits, though it is no longer offered: of its definition only the name is needed."""
    return ToolDefinition.model_construct(name=name)


def no_such_tool(name: str, tools: Iterable[ToolDefinition]) -> ToolResult:
    """Return the result of a call of a tool that its model was not offered, with up to three names that it may have meant."""
    refusal = ToolResult.refused(name.encode("utf-8", "replace").decode(), "unknown_tool", "There is no such tool.")
    return as_spoken(refusal, Spoken("mcp", name, None, near_names(name, tools, "mcp")))


def result_text(result: ToolResult) -> str:
    """Return the whole result as text. Of files it says that they cannot be shown.

    A failure says what went wrong, and then, a line each, what a model must know before it tries again: the error code,
    whether the effect has happened, whether a repeat is harmless, and what it may do next.
    """
    if result.success:
        return str(from_result(result, "openai_chat", None)["content"])
    facts = {
        "error_code": result.error_code or "internal",
        "effect_state": result.effect_state,
        "retryable": "true" if result.retryable else "false",
        "retry_after_seconds": result.retry_after_seconds,
        "hint": result.hint or hint_for(result),
    }
    said = [f"{name}: {value}" for name, value in facts.items() if value is not None]
    text = "\n".join([f"Error: {result.error or 'The call failed.'}", *said])
    return text.encode("utf-8", "replace").decode()  # half a character cannot be sent


def shown_parts(result: ToolResult) -> tuple[str, list[ResultFile]]:
    """Return the result as text, and the files to go with it: images and PDFs, which most providers take.

    The text names the others.
    """
    if result.artifacts:
        from toolfleet_registry.previews import previewed  # of a fleet that has a store

        result = previewed(result)
    if not result.success or not result.files:
        return result_text(result), []
    _, unseen = shown_files(result.files, "openai_responses", is_on=True)
    files = [file for file in result.files if shown_files((file,), "openai_responses", is_on=True)[0]]
    return result_text(result.model_copy(update={"files": ()})) + unseen, files


async def approval_of(
    fleet: ToolFleet, call_id: str, *, kept_for: tuple[str | None, str] | None = None
) -> StoredApproval | None:
    """Return the call's approval; `None` if it needs none. Raises `FleetUnavailable`.

    `kept_for`: the user and the key by which the step that has made the call always finds it.
    """
    async with _answered():
        try:
            found = await fleet.approvals.show(call_id)
        except ApprovalNotTaken:
            return None
        if kept_for is not None and found.request.user_id == kept_for[0]:
            await fleet.approvals.keep_asked(*kept_for, found)
        return found


async def asked_before(fleet: ToolFleet, user_id: str | None, idempotency_key: str) -> str | None:
    """Return the call that the step has made before, if it was deferred. Raises `FleetUnavailable`."""
    async with _answered():
        return await fleet.approvals.asked(user_id, idempotency_key)


async def denied_before(fleet: ToolFleet, call_id: str, tool_name: str, caller: Caller) -> ToolResult | None:
    """Return the result of a call of the caller's whose own result is gone, if people have denied it.

    Raises `FleetUnavailable`.
    """
    found = await approval_of(fleet, call_id)
    if found is None or (found.request.user_id, found.request.tool_name) != (caller.user_id, tool_name):
        return None
    if found.state == "rejected":
        return fleet_results.rejected(tool_name, found.journal[-1].reason)
    return fleet_results.approval_expired(tool_name) if found.state == "expired" else None


async def voted(
    fleet: ToolFleet, found: StoredApproval | None, decision: Decision | None, approver: Approver | None
) -> None:
    """Make the decision a vote of the approver's. Returns once people no longer have to decide.

    Raises `WaitsForApproval` where they have to, and `FleetUnavailable`: then it may have been taken.
    """
    if found is None or not _waits(found):
        return
    refusal = None
    if decision is not None:
        refusal = decision.fault or await _refused(fleet, found, decision, approver)
        found = await approval_of(fleet, found.approval_id) or found
    if _waits(found):
        raise WaitsForApproval(found, refusal)


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


def _kind_of(caller: Caller) -> object:
    """Return what decides the caller's listing: all but the user."""
    return caller.permission, caller.allowed_modules, caller.agent


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


@contextlib.asynccontextmanager
async def _answered() -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(_READ_SECONDS):
            yield
    except (OSError, TimeoutError, ResponseError) as exc:
        raise FleetUnavailable("Redis does not answer.") from exc


def _waits(found: StoredApproval) -> bool:
    return found.state == "waiting" and found.place != "done"


async def _refused(
    fleet: ToolFleet, found: StoredApproval, decision: Decision, approver: Approver | None
) -> str | None:
    """Return why the vote is not accepted, or `None`."""
    if decision.call_id not in {None, found.approval_id}:
        return _ANOTHER_REQUEST
    if approver is None:
        return _NOBODY
    call_id, reason, seen = found.approval_id, decision.reason, decision.seen
    try:
        if decision.approves:
            await fleet.approvals.approve(call_id, approver, arguments=decision.arguments, reason=reason, seen=seen)
        else:
            await fleet.approvals.reject(call_id, approver, reason=reason, seen=seen)
    except ApprovalNotTaken as exc:
        return " ".join(filter(None, (str(exc), exc.hint)))
    except ValueError as exc:
        return str(exc)
    return None
