"""Writes the outcome of a call in the protocol's forms, and asks clients who may decide whether a call may begin.

A call becomes a result, a progress note, a task (SEP-2663), or the notice that it goes on.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

import mcp_types as types
from mcp.shared.exceptions import MCPError
from redis.exceptions import ResponseError

from toolfleet_gateway.http.entrance import operator_of
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.call_context import Progress
from toolfleet_registry.contracts.calls import ApprovalRule
from toolfleet_registry.contracts.inputs import InputRequest, PendingInput
from toolfleet_registry.errors import ApprovalNotTaken, FleetError
from toolfleet_registry.formats.results import from_result
from toolfleet_registry.functions.passed_methods import passed_error
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import end
from toolfleet_tasks.approvals.approvers import missing_votes, refusal_of_approver
from toolfleet_tasks.approvals.records import StoredApproval
from toolfleet_tasks.approvals.views import ShownApproval, shown
from toolfleet_tasks.calls.begun_calls import RESULT_KEPT_SECONDS, BegunHandle
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.messages.fleet_results import RUNNING, running_text

log = get_logger(__name__)

CALL_ID: Final = "toolfleet/callId"
"""The name in a result's `_meta` of the call's id."""

ERROR: Final = "toolfleet/error"
"""The name in a failed result's `_meta` of the facts for programs."""

PROGRESS: Final = "notifications/progress"

_WHOLE = 100.0
_STEP = 0.01  # of it, if the call's progress is unknown

EXTENSION: Final = "io.modelcontextprotocol/tasks"

TaskState = Literal["working", "input_required", "completed", "failed", "cancelled"]

_POLL_MS = 500

_APPROVAL_REQUIRED: Final = "toolfleet/approvalRequired"
"""The name in a result's `_meta` of the approval that a call waits for."""

AskOlder: TypeAlias = Callable[[PendingInput], Awaitable[dict[str, Any]]]
_READ_SECONDS = 5.0
_POLL_SECONDS = 1.0  # between two looks at whether others have decided
_MOST_NAMED = 5  # users, and keys: a sentence is no list

APPROVAL: Final = "approval"
"""The key under which a client is asked for its decision."""

_LONGEST_SHOWN = 8_000  # characters of arguments: people must see what they approve
_LONGEST_REASON = 2_000
_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Decision",
            "description": "Whether the call may begin.",
            "enum": ["approve", "reject"],
        },
        "reason": {
            "type": "string",
            "title": "Reason",
            "description": "Why. Of a rejected call its agent is told.",
            "maxLength": _LONGEST_REASON,
        },
    },
    "required": ["decision"],
}


def call_result(result: ToolResult, call_id: str) -> dict[str, Any]:
    """Return the result in the protocol's form. The text about a failure ends with its known effect."""
    answer: dict[str, Any] = from_result(result, "mcp", None)
    meta: dict[str, Any] = {**answer.pop("_meta", {}), CALL_ID: call_id}
    if not result.success:
        meta[ERROR] = error_facts(result)
        answer["content"][0]["text"] += _known(result)
    return {**answer, "resultType": "complete", "_meta": meta}


def error_facts(result: ToolResult) -> dict[str, Any]:
    """Return the facts of a failed call, for programs."""
    facts = {
        "error_code": result.error_code,
        "effect_state": result.effect_state,
        "retryable": result.retryable,
        "retry_after_seconds": result.retry_after_seconds,
        "hint": result.hint,
        "ends_run": result.ends_run or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _known(result: ToolResult) -> str:
    facts = f"error_code: {result.error_code}, effect_state: {result.effect_state}"
    return f"\n({facts}, retryable: {'yes' if result.retryable else 'no'})"


def passed_failure(result: ToolResult) -> MCPError | None:
    """Return the server's own error; `None` for a success, and for a failure of any other kind."""
    error = None if result.success else passed_error(result.result)
    if error is None:
        return None
    data: dict[str, Any] = error.data if isinstance(error.data, dict) else {}
    return MCPError(error.code, error.message, {**data, ERROR: error_facts(result)})


@dataclass(slots=True)
class ProgressNotes:
    """The notes on one call, for the client that gave this `token`."""

    token: str | int
    _last: float = -_STEP

    def note(self, step: Progress) -> dict[str, Any]:
        """Return the parameters of the next notification."""
        known = None if step.fraction is None else step.fraction * _WHOLE
        self._last = max(self._last + _STEP, -1.0 if known is None else known)
        note: dict[str, Any] = {"progressToken": self.token, "progress": round(self._last, 4)}
        if known is not None:
            note["total"] = _WHOLE
        if step.message:
            note["message"] = step.message
        return note


def task_facts(handle: BegunHandle, state: TaskState, *, now: float, message: str | None = None) -> dict[str, Any]:
    """Return the facts of every answer about a task; times as ISO 8601, in UTC."""
    call = handle.published
    begun_at = now if call is None else call.published_at
    lasts = RESULT_KEPT_SECONDS + (0 if call is None else max(call.deadline_at - begun_at, 0))
    facts: dict[str, Any] = {
        "taskId": handle.id,
        "status": state,
        "createdAt": _iso(begun_at),
        "lastUpdatedAt": _iso(now),
        "ttlMs": round(lasts * 1000),
        "pollIntervalMs": _POLL_MS,
    }
    return facts if message is None else {**facts, "statusMessage": message}


def lacks_tasks() -> MCPError:
    """Return the error of a request that would need a client with tasks."""
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    message = f"Declare the extension {EXTENSION} in this request's capabilities."
    return MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, message, needed)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def running_result(handle: BegunHandle, waits: "CallApproval | None" = None) -> dict[str, Any]:
    """Return the preliminary result of a call that goes on. It is marked as an error: clients check others by the output schema.

    `waits`: the approval that the call waits for.
    """
    text = running_text(handle.tool_name, handle.id, None if waits is None else waits.sentence)
    meta: dict[str, Any] = {CALL_ID: handle.id, RUNNING: True}
    if waits is not None:
        meta[_APPROVAL_REQUIRED] = waits.facts
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete", "_meta": meta}


@dataclass(frozen=True, slots=True)
class CallApproval:
    """An approval that a call waits for. `question`: the question to its client, if the client may decide."""

    approval_id: str
    binding: str
    expires_at: float
    sentence: str
    question: InputRequest | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The facts for programs; the time in seconds since the epoch."""
        return {"approval_id": self.approval_id, "expires_at": self.expires_at}


class ClientApprovals:
    """The approvals of one gateway's clients.

    A user who may not decide by the rules is never asked, and their vote is not accepted.
    """

    def __init__(self, fleet: ToolFleet) -> None:
        self._fleet = fleet

    async def waited_for(self, view: McpView, handle: BegunHandle) -> CallApproval | None:
        """Return the approval, if the call waits for one now; `None` also if Redis does not answer: then the client is not asked."""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                found = await self._fleet.approvals.show(handle.id)
        except (FleetError, OSError, ResponseError):
            return None
        if not found.is_open:
            return None
        approver, sentence = operator_of(view.who).approver, _waits_for(found)
        may = refusal_of_approver(found.request, approver, found.votes) is None
        question = _form_of(shown(found, approver), sentence) if may else None
        return CallApproval(found.approval_id, found.request.binding, found.request.expires_at, sentence, question)

    async def vote(self, view: McpView, call_id: str, binding: str, answer: Any) -> bool:
        """Take the answer of a person who was shown the call of this `binding`. False: it was another one by then.

        An answer that comes too late, again, or from a user who may not decide, changes nothing. Raises `ValueError`
        for an invalid answer, and `FleetUnavailable`: then it may have been taken, and the same answer may be given
        again.
        """
        said, approver = _vote_in(answer), operator_of(view.who).approver
        if said.decision == "dismissed":
            return True
        decide = self._fleet.approvals.approve if said.decision == "approve" else self._fleet.approvals.reject
        try:
            await decide(call_id, approver, reason=said.reason, seen=binding)
        except ApprovalNotTaken as exc:
            log.info("approval_vote_not_taken", approval_id=call_id, by=approver.name, reason=exc.reason)
            return exc.reason != "changed"
        return True

    async def ask_older(self, view: McpView, handle: BegunHandle, asked: CallApproval, ask: AskOlder) -> None:
        """Have an older client decide, unless others do so first. One that does not answer leaves it to them. Raises `FleetUnavailable`."""
        if asked.question is None:
            return
        question = PendingInput(round=1, requests={APPROVAL: asked.question})
        asking = asyncio.create_task(_answered(ask, question), name="toolfleet-mcp-approval")
        deciding = asyncio.create_task(_decided(handle), name="toolfleet-mcp-decided")
        both: set[asyncio.Task[Any]] = {asking, deciding}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and (answer := asking.result()) is not None:
                await self.vote(view, handle.id, asked.binding, answer)
        except ValueError as exc:
            log.info("approval_answer_ignored", approval_id=handle.id, reason=str(exc))
        finally:
            await end(both)


async def _answered(ask: AskOlder, question: PendingInput) -> Any:
    try:
        return (await ask(question)).get(APPROVAL)
    except MCPError as exc:
        log.info("approval_not_answered", reason=exc.error.message)
        return None


async def _decided(handle: BegunHandle) -> None:
    while await handle.status() in {"waiting_approval", "unknown"} and await handle.end_within(_POLL_SECONDS) is None:
        pass


def _waits_for(found: StoredApproval) -> str:
    """Return the sentence: who may approve, how many have to, and until when."""
    request = found.request
    who = "; and ".join(dict.fromkeys(map(_approvers_of, request.rules)))
    missing = missing_votes(request, found.votes)
    more = f", {missing} of them" if missing > 1 else ""
    until = datetime.fromtimestamp(request.expires_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"A person has to approve it first, until {until}: {who}{more}."


def _approvers_of(rule: ApprovalRule) -> str:
    ways = []
    if rule.permission is not None:
        ways.append(f"users with the permission {rule.permission!r} or more")
    if rule.users:
        ways.append(_named("user", sorted(rule.users)))
    if rule.keys:
        ways.append(_named("the holder of key", sorted(rule.keys)))
    said = " or ".join(ways) or "no user"
    return said if rule.self_approval else f"{said}, but not who asks"


def _named(kind: str, names: Sequence[str]) -> str:
    more = f" or {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return " or ".join(f"{kind} {name}" for name in names[:_MOST_NAMED]) + more


@dataclass(frozen=True, slots=True)
class _FormVote:
    """A person's vote: `dismissed` decides nothing."""

    decision: Literal["approve", "reject", "dismissed"]
    reason: str = ""


def _form_of(approval: ShownApproval, sentence: str) -> InputRequest | None:
    """Return the question; `None` for arguments that are too long to be seen in a form."""
    arguments = json.dumps(approval.arguments, ensure_ascii=False, indent=2)
    if len(arguments) > _LONGEST_SHOWN:
        return None
    message = f"May {approval.tool} be called with these arguments?\n{_visible(arguments)}\n{sentence}"
    return InputRequest(
        method="elicitation/create",
        params={"mode": "form", "message": message, "requestedSchema": dict(_SCHEMA)},
    )


def _vote_in(answer: Any) -> _FormVote:
    """Parse an answer. Declining rejects; dismissing the question leaves it to others. Raises `ValueError`."""
    if not isinstance(answer, Mapping):
        raise ValueError("an answer is an object")
    match answer.get("action"):
        case "cancel":
            return _FormVote("dismissed")
        case "decline":
            return _FormVote("reject")
        case "accept":
            pass
        case _:
            raise ValueError("action must be accept, decline or cancel")
    content = answer.get("content")
    if not isinstance(content, Mapping) or not content.keys() <= {"decision", "reason"}:
        raise ValueError("content has a decision, and perhaps a reason")
    decision, reason = content.get("decision"), content.get("reason") or ""
    if decision not in {"approve", "reject"}:
        raise ValueError("decision must be approve or reject")
    if not isinstance(reason, str) or len(reason) > _LONGEST_REASON:
        raise ValueError(f"reason must be a text of at most {_LONGEST_REASON} characters")
    return _FormVote("approve" if decision == "approve" else "reject", reason)


def _visible(text: str) -> str:
    """Return the text with codes in place of characters that change how others are shown."""
    return "".join(each if each.isprintable() or each == "\n" else f"\\u{ord(each):04x}" for each in text)
