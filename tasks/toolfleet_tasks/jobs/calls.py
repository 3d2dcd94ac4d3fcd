"""Publishes a job's calls: each is an ordinary one, judged again for the job's creator, and its end is not waited for here."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from toolfleet_registry.contracts import PublishedCall, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.decisions import collecting, note
from toolfleet_registry.contracts.jobs import JobSpec
from toolfleet_registry.contracts.names import SCHEDULER
from toolfleet_registry.errors import BegunBefore
from toolfleet_registry.local.scheduler_tools import CHECK_URL
from toolfleet_registry.policy.call_faults import as_sent
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import fleet_clock
from toolfleet_registry.tracing.port import Tracing
from toolfleet_tasks.admission import Refusal
from toolfleet_tasks.approvals.service import ApprovalService
from toolfleet_tasks.calls.audit_trail import AuditTrail
from toolfleet_tasks.calls.prepare import CallPreparation, Step
from toolfleet_tasks.dispatch.dispatcher import Dispatcher
from toolfleet_tasks.tracing.job_trace import of_job

_MOST_WAITING = 250  # calls in a module's queue, where jobs add to it: an agent's own call comes after them


@dataclass(frozen=True, slots=True)
class JobCallState:
    """The result of a step that needs no publishing: the call `call_id` is known already, and is it, or stands for it."""

    call_id: str


class JobSteps:
    """Belongs to a session, and to its loop."""

    def __init__(
        self,
        preparation: CallPreparation,
        dispatcher: Dispatcher,
        approvals: ApprovalService,
        trail: AuditTrail,
        settings: Settings,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._preparation = preparation
        self._approvals = approvals
        self._dispatcher = dispatcher
        self._trail = trail
        self._settings = settings

    async def prepare(
        self, spec: JobSpec, call: ToolCall, call_id: str, *, deadline_at: float | None = None
    ) -> PublishedCall | ToolResult:
        """The step as it may be published, or its refusal; its deadline is that of any call, or the job's if that is earlier.

        Costs no round trip. A refusal has its audit line.
        """
        if call.tool_name.partition(".")[0] == SCHEDULER:
            noted = collecting(self._preparation.facts_of(spec.caller, spec.user_id, spec.conversation))
            return self._trail.refused(call, spec.caller, no_jobs_by_jobs(call.tool_name), noted)
        caller = as_sent(spec.caller, self._settings.default_guest_modules)
        ends_by = deadline_at or spec.deadline_at
        step = Step(call_id, spec.job_id, spec.user_id, ends_by, partial(_gate_refusal, spec))
        return await self._preparation.prepare(call, caller, spec.conversation, step=step)

    async def publish(
        self, call: PublishedCall, spec: JobSpec | None = None, *, first_step: int | None = None
    ) -> ToolResult | JobCallState | None:
        """Publish a step of this job.

        Returns its result if it is surely not in its queue; `None` if it is, or is too late.

        If many calls wait for its module it is `busy`. Raises `PublishUnconfirmed` if it may or may not be there. Twice
        does no harm: it has one id, under which the ledger has it run once. One that needs an approval waits for it.
        `first_step`: as of `of_job`.
        """
        if call.deadline_at <= fleet_clock.now():
            return None
        publishing = self._publish(call, () if spec is None else spec.asked_by)
        if self._tracing is None or spec is None:
            return await publishing
        return await of_job(self._tracing, spec, publishing, first_step=first_step)

    async def _publish(self, call: PublishedCall, asked_by: tuple[str, ...]) -> ToolResult | JobCallState | None:
        try:
            if call.approval is not None:
                answer = await self._approvals.ask_for_step(call.model_copy(update={"asked_by": asked_by}))
            else:
                answer = await self._dispatcher.detach(call, most_waiting=_MOST_WAITING)
        except BegunBefore:
            return JobCallState(call.call_id)
        return JobCallState(answer.call_id) if isinstance(answer, Refusal) else answer

    def unpublished(self, call: PublishedCall, result: ToolResult) -> ToolResult:
        """The result of a step that is in no queue and will not be published again, once its audit line is on its way."""
        return self._trail.unpublished(call, result)


def until_of(call: PublishedCall) -> float:
    """Return the latest end of a step, in seconds since the epoch: an approval may take its time, and then the call has its own."""
    terms = call.approval
    return call.deadline_at if terms is None else call.deadline_at + terms.expires_seconds


def gate_mark(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """Return the job's mark of a call that its creator's gate approved: another call of that tool is not covered by it."""
    written = json.dumps([tool_name, arguments], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()[:32]


def no_jobs_by_jobs(tool_name: str) -> ToolResult:
    """A job that makes jobs would have no end."""
    text = f"Tool call refused: no job may call {tool_name!r}, for a job must not make jobs."
    return ToolResult.refused(tool_name, "invalid_arguments", text)


def no_gate(tool_name: str) -> ToolResult:
    """Return the refusal of a call whose agent's gate cannot be asked."""
    text = f"Tool call blocked: {tool_name!r} requires the agent's gate, which cannot be asked here."
    return ToolResult.refused(tool_name, "blocked_by_gate", text)


def no_checker(refusal: ToolResult) -> ToolResult:
    """Return the refusal of a job that polls an address in a fleet without a tool that fetches it."""
    text = f"The job is refused: an address is polled by the tool {CHECK_URL!r} of the module 'research', which this fleet does not have."
    return refusal.model_copy(update={"error": text, "hint": None})


def unknown_to_gate(tool_name: str) -> ToolResult:
    """Return the refusal of a call whose arguments the agent's gate would have to approve before they are known."""
    text = f"Tool call blocked: {tool_name!r} requires the agent's gate, which is not asked about arguments from a job's start."
    return ToolResult.refused(tool_name, "blocked_by_gate", text)


def _gate_refusal(spec: JobSpec, tool: ToolDefinition, arguments: Mapping[str, Any]) -> ToolResult | None:
    """Return the refusal of a step that requires a gate: the gate decided when the job was made."""
    is_gated = gate_mark(tool.name, arguments) in spec.gated
    note("gate", "asked_for_job" if is_gated else "missing")
    return None if is_gated else no_gate(tool.name)
