"""Asks a module for the state of a call that it has accepted, or for the outcome of a lost one, and judges its answer.

`POST {url}/reconcile` with `{"call_id"}`. The answer is `{"call_id", "state"}` and for a call that is `done` the fields
that `/execute` would have answered: `success`, `result`, `error`, `effect_state`, `retryable`; for one that is
`running` and was accepted, its `handle`; for one that is `input_required`, its question. Of a call that was answered
`round` says which attempt is meant. The endpoint is optional; any other answer is ignored.

`POST {url}/status` with `{"call_id", "handle"}`, and `"cancel": true` for a call that is cancelled. The answer is that
of `/reconcile`, with `poll_after_seconds`, `progress` and `message` while the call is `running`. Every module that
accepts calls has the endpoint. `"takes_input": true` says that the module may ask, by `input_required`. Once that is
answered each request has the `inputs` that `/execute` would have, until the module asks something else.
"""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Literal, NamedTuple

from pydantic import ConfigDict, ValidationError, ValidationInfo, model_validator

from toolfleet_registry.contracts import ModuleMessage, PublishedCall, ToolResult
from toolfleet_registry.contracts.attempts import (
    UNBOUNDED,
    Acceptance,
    Attempt,
    Lease,
    LeaseOver,
    Outcome,
    Standing,
    StatusMissing,
    StillAtWork,
    is_handle,
    is_poll_time,
)
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.headers import ModuleHeaders
from toolfleet_registry.system.http_bodies import loads_strict
from toolfleet_registry.system.loggers import get_logger
from toolfleet_workers.executors.module_client import HttpClientPort, SendProgress, is_left_by
from toolfleet_workers.executors.reply import (
    Blocked,
    ModuleReply,
    NoReply,
    NotConnected,
    accepted,
    attempt_of,
    judge_question,
    may_ask,
    read_reply,
    tell_progress,
    too_large,
    why_invalid,
)
from toolfleet_workers.executors.request import (
    COMMON_HEADERS,
    CallerToken,
    ModuleRequest,
    Target,
    inputs_said,
    request_about,
)
from toolfleet_workers.runner import error_text, unsuccessful

log = get_logger(__name__)

QUESTION_HEADERS = {**COMMON_HEADERS, "Accept": "application/json"}  # nothing runs, so there is no progress

# With these a module says that it knows no such call, or follows none.
_NOT_KNOWN = frozenset(
    {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE, HTTPStatus.NOT_IMPLEMENTED}
)


def build_question(
    call: PublishedCall,
    target: Target,
    *,
    seconds: float,
    lease: Lease = UNBOUNDED,
    caller_token: CallerToken | None = None,
) -> ModuleRequest:
    """Return the request that asks after `call`; `target` is its module's `/reconcile`."""
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
    """Return the attempt of a call with a question in the module's answer about it. Raises `ValidationError`."""
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


class StatusTarget(NamedTuple):
    """A module's `/status`, and what goes with each request to the module.

    `replica`: the id of the process that is meant, if no other knows of the call.
    """

    target: Target
    headers: ModuleHeaders
    replica: str = ""


class HttpStatuses:
    """Asks by `client`; `find` says where, by the call and the note of its lease's replica. A larger answer than `max_reply_bytes` is not read."""

    def __init__(
        self,
        client: HttpClientPort,
        find: Callable[[PublishedCall, str], StatusTarget | StatusMissing],
        max_reply_bytes: int,
        caller_token: CallerToken | None,
    ) -> None:
        self._client, self._find = client, find
        self._max_reply_bytes, self._caller_token = max_reply_bytes, caller_token

    async def status(
        self, call: PublishedCall, handle: str, *, seconds: float, lease: Lease = UNBOUNDED, cancel: bool = False
    ) -> Standing:
        """Ask the call's module for the state of the call that it has accepted under `handle`, within `seconds`.

        `cancel`: also tell it that the call is cancelled.
        """
        found, progress, token = self._find(call, lease.replica), SendProgress(), self._caller_token
        if isinstance(found, StatusMissing):
            return found
        try:
            question = build_status_question(
                call, found.target, handle, seconds=seconds, lease=lease, caller_token=token, cancel=cancel
            )
            async with asyncio.timeout(seconds):
                return await self._ask(call, question, found, progress)
        except (TimeoutError, NoReply, LeaseOver, BodyUnreadable, ValueError) as exc:
            error = str(exc) if isinstance(exc, BodyUnreadable | ValueError) else error_text(exc)
            log.warning("status_unanswered", call_id=call.call_id, tool=call.tool_name, error=error)
            return _missing(exc, is_sent=progress.sent)

    async def _ask(
        self, call: PublishedCall, question: ModuleRequest, asked: StatusTarget, progress: SendProgress
    ) -> Standing:
        response = await self._client.post(question, progress)
        try:
            if is_left_by(response, asked.replica):
                return StatusMissing(is_gone=True)
            if response.status in _NOT_KNOWN:
                return _not_known(call)
            if response.status != HTTPStatus.OK:
                raise BodyUnreadable(f"status {response.status}")
            body = await read_reply(response, self._max_reply_bytes)
        except BodyTooLarge as exc:
            return too_large(call, exc)
        finally:
            response.release()
        found = judge_status_answer(call, body)
        is_failure = isinstance(found, Attempt) and not found.result.success
        shown = asked.headers.hide(body) if is_failure else body
        return found if shown is body else judge_status_answer(call, shown)


class ModuleStatusAnswer(ReconcileAnswer):
    """The fields beyond those of a reconciliation count while the call is `running`."""

    poll_after_seconds: Any = None
    progress: Any = None
    message: Any = None


def build_status_question(
    call: PublishedCall,
    target: Target,
    handle: str,
    *,
    seconds: float,
    lease: Lease = UNBOUNDED,
    caller_token: CallerToken | None = None,
    cancel: bool = False,
) -> ModuleRequest:
    """Return the request that asks where `call` is; `target` is its module's `/status`."""
    question: dict[str, Any] = {"call_id": call.call_id, "handle": handle}
    if cancel:
        question["cancel"] = True
    elif call.takes_input:
        question |= {"takes_input": may_ask(call), "inputs": inputs_said(call)}
    said = {name: value for name, value in question.items() if value not in (None, False)}
    body = json.dumps(said).encode()
    return request_about(call, target, body, seconds=seconds, lease=lease, caller_token=caller_token)


def judge_status_answer(call: PublishedCall, body: bytes) -> Attempt | StillAtWork:
    """Return the module's answer about the call; progress is reported.

    A call that it does not know has ended as unknown.

    A module that says `none` about a call that it has accepted contradicts itself: this counts as not knowing the call.
    A question of the module is an attempt with a question. Raises `ValueError`, with a reason that can be shown, if
    `body` is no answer to this question.
    """
    try:
        answer = ModuleStatusAnswer.model_validate(loads_strict(body), context=call.call_id)
        match answer.state:
            case "done":
                return attempt_done(call, answer)
            case "running":
                return _at_work(answer)
            case "input_required":
                return asked_in(call, answer)
            case "none" | "unknown":
                return _not_known(call)
    except ValidationError as exc:
        raise ValueError(why_invalid(exc)) from exc


def _not_known(call: PublishedCall) -> Attempt:
    """Return the attempt of a call that its module has accepted and no longer knows."""
    text = "Tool execution error: the module had begun the call, and does not know it any more"
    return unsuccessful(call, Outcome.UNKNOWN, "outcome_unknown", text)


def _missing(exc: Exception, *, is_sent: bool) -> StatusMissing:
    """Return the meaning of an unanswered question, for this reason; `is_sent`: it may have been read."""
    if isinstance(exc, TimeoutError):
        return StatusMissing(is_silent=is_sent, is_unreached=not is_sent)
    return StatusMissing(is_unreached=isinstance(exc, NotConnected) and not isinstance(exc, Blocked))


def _at_work(answer: ModuleStatusAnswer) -> StillAtWork:
    if answer.progress is not None or answer.message is not None:
        tell_progress({"progress": answer.progress, "message": answer.message})
    seconds = answer.poll_after_seconds
    return StillAtWork(float(seconds) if is_poll_time(seconds) else None)
