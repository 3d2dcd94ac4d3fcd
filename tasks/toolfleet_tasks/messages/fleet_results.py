"""Builds the results that the fleet itself gives when there is no answer of a module.

Each says what went wrong; what a model may do next, the table of `policy/hints.py` says.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolfleet_registry.contracts import Audit, EffectState, ErrorCode, PublishedCall, ToolResult
from toolfleet_registry.errors import MessageRefused, MessageTooLarge
from toolfleet_registry.policy.hints import DRAINING, KEYS_DIFFER, KILLS_WORKERS, hint_for, words_for
from toolfleet_registry.system import fleet_clock

STATUS_TOOL: Final = "call_status"

WAIT_TOOL: Final = "call_wait"

CANCEL_TOOL: Final = "call_cancel"

RUNNING: Final = "toolfleet/running"
"""The name in a result's `_meta` that says of a call that it has not ended."""

UNKNOWN_CALL: Final = "There is no such call: it is unknown, or was forgotten."

OF_SOMEBODY_ELSE: Final = "Somebody else has begun the call, and it is theirs to take back."

NO_ANSWER: Final = "The fleet's Redis does not answer: ask again in a moment."

WRONG_ARGUMENTS: Final = "call_id must be the text that names a call, and seconds a number."

_CALL_ID = {"type": "string", "description": "The call's id, as it was told."}

_SECONDS = {"type": "number", "minimum": 0, "description": "How long to wait at most."}

_AWAY_SECONDS = 5.0  # until a repeat makes sense: a server that is away, or full, is seldom well within a second

_COARSE = 10  # seconds: from here on, a part of one does not matter


def approval_required(tool_name: str, call_id: str, *, expires_at: float | None) -> ToolResult:
    """Return the result of a call that waits for people, until then at most, where that is known.

    Its id is that of the approval.
    """
    hours = max((expires_at or 0) - fleet_clock.now(), 0) / 3600
    left = f"{math.ceil(hours * 60)} min" if hours < 1 else f"{math.ceil(hours)} h"
    within = "" if expires_at is None else f", within {left}"
    text = f"Tool call waits: a person has to approve it first{within}; its approval is {call_id}."
    result = ToolResult.refused(tool_name, "approval_required", text)
    audit = Audit(call_id=call_id, tool=tool_name, ts=fleet_clock.now())
    return result.model_copy(update={"audit": audit, "hint": hint_for(result)})


def rejected(tool_name: str, reason: str) -> ToolResult:
    """Return the result of a call that a person has rejected, perhaps with a reason of theirs."""
    said = f": {reason}" if reason else "."
    return _denied(tool_name, f"Tool call denied: a person has rejected it{said}")


def approval_expired(tool_name: str) -> ToolResult:
    """Return the result of a call that was not decided in time."""
    return _denied(tool_name, "Tool call denied: nobody has approved it in time (expired).")


def changed(tool_name: str, reason: str) -> ToolResult:
    """Return the result of a call that differs from what was to be approved."""
    return _denied(tool_name, f"Tool call denied: {reason}.")


def unapproved(tool_name: str) -> ToolResult:
    """Return the result of a message without an approval of its call: it was withdrawn, or never given."""
    return _denied(tool_name, "Tool call denied: nobody has approved it.")


def too_many_wait(tool_name: str, count: int) -> ToolResult:
    """Return the refusal of a call because too many wait for approvals."""
    text = f"Tool call refused: {count} calls wait for approvals already."
    return ToolResult.failed(tool_name, "busy", text, effect_state="none", retryable=True)


def _denied(tool_name: str, text: str) -> ToolResult:
    return ToolResult.refused(tool_name, "approval_denied", text)


def _tool(name: str, description: str, properties: Mapping[str, Any], *, reads: bool) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": ["call_id"], "additionalProperties": False}
    hints = {"readOnlyHint": reads, "idempotentHint": True, "destructiveHint": False}
    return {"name": name, "description": description, "inputSchema": schema, "annotations": hints}


FOLLOWING_TOOLS: Final[Mapping[str, Mapping[str, Any]]] = {
    STATUS_TOOL: _tool(
        STATUS_TOOL, "Say where a call is that was told to be still running, and how far.", {"call_id": _CALL_ID}, reads=True
    ),
    WAIT_TOOL: _tool(
        WAIT_TOOL,
        "Wait for the result of a call that was told to be still running.",
        {"call_id": _CALL_ID, "seconds": _SECONDS},
        reads=True,
    ),
    CANCEL_TOOL: _tool(
        CANCEL_TOOL, "Take a call back that was told to be still running.", {"call_id": _CALL_ID}, reads=False
    ),
}  # fmt: skip
"""What each is, as MCP's `tools/list` has it."""


def running_text(tool_name: str, call_id: str, waits: str | None = None) -> str:
    """Return the text for a model about a call that continues.

    `waits`: the text about the approval that the call waits for.
    """
    where = f"is still running as call {call_id}" if waits is None else f"has not begun: call {call_id} waits"
    said = "" if waits is None else f" (approval_required) {waits}"
    return (
        f"{tool_name} {where}.{said} Do not call it again: use {WAIT_TOOL} with this call_id "
        f"for its result, {STATUS_TOOL} to see how far it is, or {CANCEL_TOOL} to take it back."
    )


def state_text(tool_name: str, call_id: str, status: str) -> str:
    """Return the text for a model about a call's state."""
    said = "has ended: wait for it to have its result" if status == "done" else f"is {status}"
    return f"Call {call_id} of {tool_name} {said}."


def asked_of(arguments: Mapping[str, Any], longest: float) -> tuple[str, float] | None:
    """Return the call id, and for how many seconds to wait at most; `None` for invalid arguments."""
    call_id, seconds = arguments.get("call_id"), arguments.get("seconds", longest)
    if not isinstance(call_id, str) or isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    return call_id, min(max(seconds, 0), longest)


def undone(tool_name: str) -> ToolResult:
    """Return the result of a call at its deadline, after attempts that did nothing."""
    text = "Tool call could not be executed by its deadline: its module was not there."
    return ToolResult.failed(tool_name, "timed_out", text, effect_state="none", retryable=True)


@dataclass(frozen=True, slots=True)
class CallEnding:
    """The end of a call from outside: if no attempt was ever started, if those started surely did nothing, or otherwise.

    `yields`: to its worker's newer note, which is more than `unknown`.
    """

    unbegun: ToolResult
    undone: ToolResult
    unknown: ToolResult
    yields: bool = False


def at_deadline(call: PublishedCall) -> CallEnding:
    """Return the end of a call at its deadline."""
    return CallEnding(expired(call.tool_name), undone(call.tool_name), unanswered(call), yields=True)


def taken_back(call: PublishedCall) -> CallEnding:
    """Return the end of a call that its caller has cancelled."""
    nothing = cancelled(call.tool_name, effect_state="none")
    return CallEnding(nothing, nothing, _repeatable(call, cancelled(call.tool_name, effect_state="unknown")))


def timed_out(tool_name: str, seconds: float) -> ToolResult:
    """Return the result of a call that its module did not answer in time; the module may still work on it."""
    shown = f"{seconds:.0f}" if seconds >= _COARSE else f"{seconds:.2g}"
    text = f"Tool execution timed out ({shown}s)."
    return ToolResult.failed(tool_name, "timed_out", text, effect_state="unknown")


def expired(tool_name: str) -> ToolResult:
    """Return the result of a call that was not started by its deadline: nothing has happened."""
    text = "Tool call expired: its deadline passed before a worker could begin it."
    return ToolResult.failed(tool_name, "expired", text, effect_state="none", retryable=True)


def unanswered(call: PublishedCall) -> ToolResult:
    """Return the result of a call at its deadline, after it was started, or perhaps was."""
    text = "Tool call was not answered by its deadline."
    return _repeatable(call, ToolResult.failed(call.tool_name, "timed_out", text, effect_state="unknown"))


def cancelled(tool_name: str, *, effect_state: EffectState) -> ToolResult:
    """Return the result of a cancelled call: before it was started (`none`), or while it ran."""
    text = "Tool call was cancelled before it was executed." if effect_state == "none" else "Tool call was cancelled."
    return ToolResult.failed(tool_name, "cancelled", text, effect_state=effect_state, retryable=effect_state == "none")


def outcome_unknown(tool_name: str, reason: str) -> ToolResult:
    """Return the result of a call that a worker took and whose end was not seen."""
    text = f"Tool execution error: {reason}"
    return ToolResult.failed(tool_name, "outcome_unknown", text, effect_state="unknown")


def workers_died(tool_name: str, so_far: EffectState) -> ToolResult:
    """Return the result of a call with which two workers have died: it is not tried on a third.

    `so_far` is what it may have done.
    """
    text = "Tool execution error: two workers have died with the call in their hands."
    code: ErrorCode = "internal" if so_far == "none" else "outcome_unknown"
    result = ToolResult.failed(tool_name, code, text, effect_state=so_far)
    return result.model_copy(update={"hint": KILLS_WORKERS if so_far == "none" else hint_for(result)})


def worker_failed(tool_name: str, kind: str) -> ToolResult:
    """Return the result of a call that a worker gave up before it started it, or after attempts that did nothing."""
    text = f"Tool execution error: the worker failed ({kind})."
    return ToolResult.failed(tool_name, "internal", text, effect_state="none", retryable=True)


def fleet_unavailable(tool_name: str, reason: str) -> ToolResult:
    """Return the result of a call that is surely not in its queue: Redis, or the broker, is away or takes nothing now.

    Only agents word this, and it is stored for no call: older agents, which may join one, know no such code.
    """
    text = f"Tool execution error: the queue cannot be reached ({reason})."
    result = ToolResult.failed(tool_name, "fleet_unavailable", text, effect_state="none", retryable=True)
    return result.model_copy(update={"retry_after_seconds": _AWAY_SECONDS})


def not_published(tool_name: str, reason: str) -> ToolResult:
    """Return the result of a call that never got into its queue, for a reason other than the broker."""
    text = f"Tool execution error: the queue cannot be reached ({reason})."
    return ToolResult.failed(tool_name, "internal", text, effect_state="none", retryable=True)


def not_known(tool_name: str, seconds: float) -> ToolResult:
    """Return the result of a call if no worker could find out who may use the tool by its deadline: Redis, the registry or the module is away."""
    text = "Tool execution error: the fleet could not find out who may use this tool."
    result = ToolResult.failed(tool_name, "busy", text, effect_state="none", retryable=True)
    return result.model_copy(update={"retry_after_seconds": round(seconds, 1)})


def module_away(tool_name: str, seconds: float, *, why: str = "failed") -> ToolResult:
    """Return the result of a call to a module with an open breaker, and `why`: it is tried again after so many seconds."""
    text = f"Tool execution error: the module is left alone for now: {words_for(why)}."
    if why == "refused":  # to the letter: agents match on what a refused connection has always read
        text = f"Tool execution error: {words_for(why)}"
    result = ToolResult.failed(tool_name, "module_unreachable", text, effect_state="none", retryable=True)
    return result.model_copy(update={"retry_after_seconds": max(round(seconds, 1), 0.1)})


def unserved(tool_name: str, lane: str) -> ToolResult:
    """Return the refusal of a call to a module that no worker serves or is expected to serve.

    Only agents use it.
    """
    module = tool_name.partition(".")[0]
    text = f"Tool call refused: no worker serves the module {module!r} (lane {lane})."
    result = ToolResult.failed(tool_name, "busy", text, effect_state="none", retryable=True)
    return result.model_copy(update={"retry_after_seconds": _AWAY_SECONDS})


def unknown_to_workers(tool_name: str, why: str | None) -> ToolResult:
    """Return the refusal of a call to a module that only the agent's settings name: no worker will ever run it.

    `why`: the reason, if it is known.
    """
    module = tool_name.partition(".")[0]
    text = f"Tool call refused: no worker of the fleet knows the module {module!r}, which only the settings here name. "
    text += why or f"`toolfleet modules add {module} URL` adds it to the fleet that runs."
    hint = "Nothing was executed: nobody can use this tool until an operator has added its module; go on without it, or tell the person."
    return ToolResult.refused(tool_name, "unknown_module", text, hint=hint)


def draining(tool_name: str, queue: str) -> ToolResult:
    """Return the refusal of a call to a module that takes no new calls, as an operator wants.

    Only agents give it.
    """
    text = f"Tool call refused: the queue {queue!r} is draining."
    result = ToolResult.failed(tool_name, "busy", text, effect_state="none", retryable=True)
    return result.model_copy(update={"retry_after_seconds": _AWAY_SECONDS, "hint": DRAINING})


def message_refused(tool_name: str, reason: MessageRefused | str) -> ToolResult:
    """Return the result of a message that no holder of the signing key has sent, or that is larger than agents send."""
    if isinstance(reason, MessageTooLarge):
        return ToolResult.refused(tool_name, "invalid_arguments", str(reason))
    text = f"Tool execution error: the worker refused the message: {reason}"
    return ToolResult.refused(tool_name, "permission_denied", text, hint=KEYS_DIFFER)


def message_too_new(tool_name: str, reason: str) -> ToolResult:
    """Return the result of a call that was published by a newer agent than every worker that serves its queue."""
    text = f"Tool execution error: the fleet's workers are older than what published the call: {reason}."
    return ToolResult.failed(tool_name, "internal", text, effect_state="none", retryable=True)


def dropped(call: PublishedCall) -> ToolResult:
    """Return the result of an ended call whose own result is no longer kept."""
    text = "Tool call has ended, and its result is not kept any more."
    return _repeatable(call, ToolResult.failed(call.tool_name, "result_dropped", text, effect_state="unknown"))


def result_refused(result: ToolResult, reason: str) -> ToolResult:
    """Return the result of an ended call whose own result Redis does not take."""
    text = f"Tool execution error: the result cannot be stored: {reason}"
    short = ToolResult.failed(result.tool_name, "result_too_large", text, effect_state=result.effect_state)
    return short.model_copy(update={"audit": result.audit})


def _repeatable(call: PublishedCall, result: ToolResult) -> ToolResult:
    """Return whether a call with an unknown end may be repeated: its tool says so."""
    return result.model_copy(update={"retryable": call.effect in {"read", "idempotent"}})
