"""Asks a module for the outcome of a lost call, and judges its answer.

`POST {url}/reconcile` with `{"call_id"}`. The answer is `{"call_id", "state"}` and for a call that is `done` the fields
that `/execute` would have answered: `success`, `result`, `error`, `effect_state`, `retryable`; for one that is
`running` and was accepted, its `handle`; for one that is `input_required`, its question. Of a call that was answered
`round` says which attempt is meant. The endpoint is optional; any other answer is ignored.
"""

import json
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError, ValidationInfo, model_validator

from toolfleet_registry.contracts import ModuleMessage, PublishedCall, ToolResult
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.outcomes import Acceptance, Attempt, Outcome, is_handle
from toolfleet_registry.system.http_bodies import loads_strict
from toolfleet_registry.time.lease import UNBOUNDED, Lease
from toolfleet_workers.executors.http.acceptance import accepted
from toolfleet_workers.executors.http.input_reply import judge_question
from toolfleet_workers.executors.http.reply import ModuleReply, attempt_of, why_invalid
from toolfleet_workers.executors.http.request import COMMON_HEADERS, CallerToken, ModuleRequest, request_about
from toolfleet_workers.executors.http.target import Target
from toolfleet_workers.runner import unsuccessful

QUESTION_HEADERS = {**COMMON_HEADERS, "Accept": "application/json"}  # nothing runs, so there is no progress


def build_question(
    call: PublishedCall,
    target: Target,
    *,
    seconds: float,
    lease: Lease = UNBOUNDED,
    caller_token: CallerToken | None = None,
) -> ModuleRequest:
    """The request that asks after `call`; `target` is its module's `/reconcile`."""
    about: dict[str, Any] = {"call_id": call.call_id}
    if call.inputs is not None:
        about["round"] = call.inputs.round
    body = json.dumps(about).encode()
    return request_about(call, target, body, seconds=seconds, lease=lease, caller_token=caller_token)


def judge_answer(call: PublishedCall, body: bytes) -> Attempt | None:
    """Return the module's answer about the call: done, surely not started, or nothing that helps (`None`).

    Raises `ValueError`, with a reason that can be shown, if `body` is no answer to this question.
    """
    try:
        answer = ReconcileAnswer.model_validate(loads_strict(body), context=call.call_id)
        match answer.state:
            case "done":
                return attempt_done(call, answer)
            case "none":
                text = "Tool execution error: the module did not reply; it says that it has not executed the call"
                return unsuccessful(call, Outcome.NOT_SENT, "module_error", text)
            case "running" if is_handle(answer.handle):
                return accepted(call, Acceptance(answer.handle))
            case "input_required":
                return asked_in(call, answer)
            case "running" | "unknown":
                return None
    except ValidationError as exc:
        raise ValueError(why_invalid(exc)) from exc


class ReconcileAnswer(ModuleMessage):
    """The fields after `state` are judged as those of any other reply, where they count."""

    model_config = ConfigDict(strict=True, defer_build=DEFERS_BUILD)

    call_id: str
    state: Literal["done", "none", "running", "unknown", "input_required"]
    success: Any = None
    result: Any = None
    error: Any = None
    effect_state: Any = None
    retryable: Any = None
    handle: Any = None
    input_required: Any = None

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> "ReconcileAnswer":
        if self.call_id != info.context:
            raise ValueError("it is for another call")
        return self


def asked_in(call: PublishedCall, answer: ReconcileAnswer) -> Attempt:
    """Return the attempt of a call whose module asks something in an answer about it. Raises `ValidationError`."""
    fields = {"tool_name": call.tool_name, **answer.model_dump(include={"input_required", "effect_state"})}
    return judge_question(call, fields)


def attempt_done(call: PublishedCall, answer: ReconcileAnswer) -> Attempt:
    """Return the attempt of a call that its module has done. Raises `ValidationError`."""
    if answer.success is None:
        text = "Tool execution error: the module has executed the call, and its reply is lost"
        return Attempt(Outcome.FAILED, ToolResult.failed(call.tool_name, "module_error", text, effect_state="done"))
    fields = answer.model_dump(include={"success", "result", "error", "retryable"})
    fields.update(tool_name=call.tool_name, effect_state=answer.effect_state or "done")
    return attempt_of(call, ModuleReply.model_validate(fields, context=call.tool_name))
