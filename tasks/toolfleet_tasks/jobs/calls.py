"""Publishes a job's calls: each is an ordinary one, judged anew for the job's creator, and nobody waits for its end here."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolfleet_registry.contracts import PublishedCall, ToolCall, ToolResult
from toolfleet_registry.contracts.decisions import collecting, note
from toolfleet_registry.contracts.jobs import JobSpec
from toolfleet_registry.contracts.names import SCHEDULER
from toolfleet_registry.errors import BegunBefore
from toolfleet_registry.local.url_polls import CHECK_URL
from toolfleet_registry.policy.reach import as_sent
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.admission.control import Refusal
from toolfleet_tasks.calls.audit_trail import AuditTrail
from toolfleet_tasks.calls.eval_gate import NOTHING_MORE
from toolfleet_tasks.calls.prepare import CallPreparation
from toolfleet_tasks.dispatch.dispatcher import Dispatcher
from toolfleet_tasks.queues import Route

_MOST_WAITING = 250  # calls in a module's queue, where jobs add to it: an agent's own call comes after them


@dataclass(frozen=True, slots=True)
class Ready:
    """A call that may be published."""

    call: PublishedCall
    route: Route


@dataclass(frozen=True, slots=True)
class JobCallState:
    """What a step came to that needs not be published: the call `call_id` is known already, and is it, or stands for it."""

    call_id: str


class JobSteps:
    """Belongs to a session, and to its loop."""

    def __init__(
        self, preparation: CallPreparation, dispatcher: Dispatcher, trail: AuditTrail, settings: Settings
    ) -> None:
        self._preparation = preparation
        self._dispatcher = dispatcher
        self._trail = trail
        self._settings = settings

    def ready(
        self, spec: JobSpec, call: ToolCall, call_id: str, *, deadline_at: float | None = None
    ) -> Ready | ToolResult:
        """The step as it may be published, or its refusal; its deadline is that of any call, or the job's if that is earlier.

        Costs no round trip. A refusal has its audit line.
        """
        noted = collecting()
        if call.tool_name.partition(".")[0] == SCHEDULER:
            return self._refused(spec, call, no_jobs_by_jobs(call.tool_name), noted)
        caller = as_sent(spec.caller, self._settings.default_guest_modules)
        judged = self._preparation.judge(call, caller, spec.conversation)
        if isinstance(judged, ToolResult):
            return self._refused(spec, call, judged, noted)
        tool = judged.tool
        if tool.requires_gate:
            is_gated = gate_mark(tool.name, judged.arguments) in spec.gated
            note("gate", "asked_for_job" if is_gated else "missing")
            if not is_gated:
                return self._refused(spec, call, no_gate(tool.name), noted)
        route = self._preparation.route(tool)
        published = PublishedCall(
            call_id=call_id,
            arguments=judged.arguments,
            user_id=spec.user_id,
            caller=caller,
            deadline_at=min(self._preparation.deadline(route, None), deadline_at or spec.deadline_at),
            idempotency_key=call.idempotency_key or None,
            decisions=noted,
            job_id=spec.job_id,
            tool_version=call.tool_version,
            **self._preparation.facts_of(tool, route, NOTHING_MORE),
        )
        return Ready(published, route)

    async def publish(self, ready: Ready) -> ToolResult | JobCallState | None:
        """Get a step into its queue. Its result if it is surely not there; `None` if it is, or is too late.

        Where many calls wait for its module it is `busy`. Raises `PublishUnconfirmed` where nobody knows. Twice does no
        harm: it has one id, under which the ledger has it run once.
        """
        if ready.call.deadline_at <= fleet_clock.now():
            return None
        try:
            answer = await self._dispatcher.detach(ready.call, ready.route, most_waiting=_MOST_WAITING)
        except BegunBefore:
            return JobCallState(ready.call.call_id)
        return JobCallState(answer.call_id) if isinstance(answer, Refusal) else answer

    def unpublished(self, ready: Ready, result: ToolResult) -> ToolResult:
        """The result of a step that is in no queue and will not be published again, once its audit line is on its way."""
        return self._trail.unpublished(ready.call, result)

    def _refused(self, spec: JobSpec, call: ToolCall, result: ToolResult, noted: dict[str, str]) -> ToolResult:
        return self._trail.refused(call, spec.caller, result, noted)


def gate_mark(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """What a job keeps of a call that its creator's gate let pass: another call of that tool is not let pass by it."""
    written = json.dumps([tool_name, arguments], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()[:32]


def no_jobs_by_jobs(tool_name: str) -> ToolResult:
    """A job that makes jobs would have no end."""
    text = f"Tool call refused: no job may call {tool_name!r}, for a job must not make jobs."
    return ToolResult.refused(tool_name, "invalid_arguments", text)


def no_gate(tool_name: str) -> ToolResult:
    """Where no agent is there whose gate could be asked."""
    text = f"Tool call blocked: {tool_name!r} requires the agent's gate, which cannot be asked here."
    return ToolResult.refused(tool_name, "blocked_by_gate", text)


def no_checker(refusal: ToolResult) -> ToolResult:
    """Say what is missing where an address is to be polled and the fleet has nobody who fetches it."""
    text = f"The job is refused: an address is polled by the tool {CHECK_URL!r} of the module 'research', which this fleet does not have."
    return refusal.model_copy(update={"error": text, "hint": None})


def unknown_to_gate(tool_name: str) -> ToolResult:
    """Where the agent's gate would have to let pass what nobody knows yet."""
    text = f"Tool call blocked: {tool_name!r} requires the agent's gate, which is not asked about arguments from a job's start."
    return ToolResult.refused(tool_name, "blocked_by_gate", text)
