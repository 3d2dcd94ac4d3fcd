"""Reads a module's answer to `POST /execute` strictly, whole or in lines, because what follows depends on it.

The class decides nothing but words: whether the module can have seen a request is for `SendProgress` to say::

    NoReply
    ├── NotConnected     nothing was sent
    │   └── Blocked      and the worker itself is the reason
    ├── ConnectionLost   the connection ended before the head of a response was there
    └── ReplyBroken      what came is no HTTP response from start to end

`{"progress": 0.4, "message": "…"}` a line, each at most 4 kB; `progress` may be null. `{"log": {"level": "info",
"data": …}}` for calls by a caller that wants it, and ignored for others. The last line is what would otherwise be the
whole body. Unknown fields are ignored; so are a fraction that is no number, and a message that is no text.
"""

import asyncio
import contextlib
import json
import math
import re
from binascii import a2b_base64
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, ValidationInfo, field_validator, model_validator

from toolfleet_registry.contracts import EffectState, ModuleMessage, PublishedCall, ResultFile, ToolResult
from toolfleet_registry.contracts.attempts import (
    LONGEST_HANDLE,
    Acceptance,
    Attempt,
    Health,
    Outcome,
    Question,
    is_poll_time,
)
from toolfleet_registry.contracts.call_context import LONGEST_MESSAGE, current_log, log_message_in, report
from toolfleet_registry.contracts.calls import MOST_FILES
from toolfleet_registry.contracts.inputs import MOST_ROUNDS, check_requests, requests_of
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.policy.hints import WORDS, Why
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.http_bodies import BodyReader, loads_strict
from toolfleet_registry.system.loggers import get_logger
from toolfleet_workers.executors.module_client import ModuleResponse
from toolfleet_workers.runner import readable, unsuccessful

log = get_logger(__name__)

_MAX_BYTES = 16 * 2**10  # as sent: 2 kB of text, however much of it is colour; far more than a reply that says why

# The status has said what happened. A body that trickles must not turn "busy" into "timed out".
_PATIENCE_SECONDS = 2

__all__ = ["AcceptedReply", "ValidationError", "accepted", "is_acceptance", "judge_acceptance"]

_FILES = TypeAdapter(tuple[ResultFile, ...])

_SHOWN_PLACE = 80  # characters of a place, which may have been made up

_PLAIN = frozenset({"tool_name", "success", "result", "error"})

_SHOWN_NAME = 100  # bytes of a foreign name in a reason

CONTENT_TYPE = "application/x-ndjson"

_PLAIN_JSON = "application/json"

_LINE_BYTES = 64 * 2**10  # of one that is read as progress; what is longer and begins as one is passed over

# How much progress is taken: a module that says more is read no faster than this, so that a flood costs a worker little.
# The call's time bounds it in all.
_BYTES_AT_ONCE = 4 * 2**20

_BYTES_A_SECOND = 2**20

_REPORTS = frozenset({"progress", "log"})

_BEGINS_AS_REPORT = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:progress|log)"')

_HEAD = 64  # bytes in which that shows


class NoReply(Exception):
    """A module's reply did not come, or not whole."""


class NotConnected(NoReply):
    """There is no connection; the message says why and names no address: a model reads it.

    `why`: the kind of reason.
    """

    def __init__(self, reason: str, why: Why = "away") -> None:
        super().__init__(reason)
        self.why: Why = why


class Blocked(NotConnected):
    """The worker cannot make connections now: it lacks descriptors, ports, memory, a route or a name service."""


class ConnectionLost(NoReply):
    """The connection ended before the module replied."""


class ReplyBroken(NoReply):
    """The module replied, but not with an HTTP response from start to end."""


def not_sent(call: PublishedCall, reason: str, unreached: Health, why: Why = "away") -> Attempt:
    """Return an attempt of which nothing was sent, or nothing to its intended process."""
    text = f"Tool execution error: {'' if reason == WORDS['refused'] else 'the module cannot be reached: '}{reason}"
    attempt = unsuccessful(call, Outcome.NOT_SENT, "module_unreachable", text)
    return Attempt(attempt.outcome, attempt.result, unreached=unreached, why=why)


def silent(seconds: float) -> NotConnected:
    """Return the error of a connection that nothing has accepted within `seconds`."""
    return NotConnected(f"{WORDS['silent']} (no connection within {max(seconds, 0):.3g}s)", "silent")


def lost(call: PublishedCall, exc: NoReply) -> Attempt:
    """Return an attempt that was sent, and lost its reply."""
    if isinstance(exc, ReplyBroken):
        text = "Tool execution error: the module's reply is invalid: not HTTP, or cut short"
        return unsuccessful(call, Outcome.UNKNOWN, "invalid_response", text)
    # Not module_unreachable: that code promises that nothing was executed.
    text = "Tool execution error: the connection to the module was lost before it replied"
    return unsuccessful(call, Outcome.UNKNOWN, "module_error", text)


async def read_reply(response: ModuleResponse, limit: int) -> bytes:
    """Return the body, as `BodyReader` reads it; `NoReply` passes."""
    reader = BodyReader(
        limit,
        encoding=response.field("content-encoding") or "",
        announced=response.field("content-length") or "",
    )
    while chunk := await response.read_chunk():
        reader.feed(chunk)
    return reader.finish()


async def start_of_error(response: ModuleResponse) -> bytes:
    """Return the part of an error's body that came in time and before the connection was lost."""
    encoding = (response.field("content-encoding") or "identity").strip().lower()
    if encoding != "identity":  # we asked for none; not worth a decompression bomb
        return f"[{encoding} data]".encode()
    body = bytearray()
    with contextlib.suppress(TimeoutError, NoReply):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while len(body) < _MAX_BYTES and (chunk := await response.read_chunk()):
                body += chunk
    return bytes(body[:_MAX_BYTES])


def accepted(call: PublishedCall, acceptance: Acceptance) -> Attempt:
    """Return an attempt that left the call to its module."""
    text = "Tool execution error: the module continues the call, and its end cannot be known"
    attempt = unsuccessful(call, Outcome.UNKNOWN, "outcome_unknown", text)
    return Attempt(attempt.outcome, attempt.result, acceptance=acceptance)


class AcceptedReply(ModuleMessage):
    """A module's answer about a call that it continues. The handle is for its `/status`, and printable."""

    model_config = ConfigDict(strict=True, defer_build=DEFERS_BUILD)

    tool_name: str
    accepted: Literal[True]
    handle: Annotated[str, Field(min_length=1, max_length=LONGEST_HANDLE)]
    poll_after_seconds: float | None = None

    @field_validator("poll_after_seconds", mode="before")
    @classmethod
    def _believe_a_time(cls, value: Any) -> float | None:
        return float(value) if is_poll_time(value) else None

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> "AcceptedReply":
        if self.tool_name != info.context:
            raise ValueError("it is for another tool")
        if not self.handle.isprintable():
            raise ValueError("'handle' is not printable")
        return self


def is_acceptance(document: object) -> bool:
    """Return whether a reply's JSON says that the call continues, however malformed."""
    return isinstance(document, dict) and document.get("accepted") is True and "success" not in document


def judge_acceptance(call: PublishedCall, document: object) -> Attempt:
    """Return the attempt for such a reply. Raises `ValidationError` if it is invalid."""
    reply = AcceptedReply.model_validate(document, context=call.tool_name)
    return accepted(call, Acceptance(reply.handle, reply.poll_after_seconds))


class InputReply(ModuleMessage):
    """A module's question. Without a valid `effect_state` the effect of the call so far is unknown."""

    model_config = ConfigDict(strict=True, defer_build=DEFERS_BUILD)

    tool_name: str
    input_required: dict[str, Any]
    effect_state: EffectState = "unknown"

    @field_validator("effect_state", mode="before")
    @classmethod
    def _believe_known_states(cls, value: Any) -> Any:
        return value if value in ("none", "done", "unknown") else "unknown"

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> "InputReply":
        if self.tool_name != info.context:
            raise ValueError("it is for another tool")
        check_requests(self.input_required.get("requests"), self.input_required.get("state", ""))
        return self


def is_question(document: object) -> bool:
    """Return whether a reply's JSON asks something, however malformed."""
    return isinstance(document, dict) and "input_required" in document and "success" not in document


def judge_question(call: PublishedCall, document: object) -> Attempt:
    """Return the attempt for such a reply. Raises `ValidationError` if it is invalid."""
    reply = InputReply.model_validate(document, context=call.tool_name)
    return asked(call, reply.input_required, reply.effect_state)


def may_ask(call: PublishedCall) -> bool:
    """Return whether the caller answers one more question."""
    return call.takes_input and (call.inputs is None or call.inputs.round < MOST_ROUNDS)


def asked(call: PublishedCall, question: dict[str, Any], state: EffectState) -> Attempt:
    """Return an attempt with a question of its module, which is checked.

    If the caller cannot answer, or it has asked too often, the call has failed.
    """
    rounds = 0 if call.inputs is None else call.inputs.round
    if not call.takes_input:
        text = "Tool execution error: the tool asks for more input, and its caller cannot be asked"
    elif rounds >= MOST_ROUNDS:
        text = f"Tool execution error: the tool has asked for more input {rounds} times, and that is all it may"
    else:
        text = "Tool execution error: the tool asks for more input"
    result = ToolResult.failed(call.tool_name, "module_error", text, effect_state=state)
    if not may_ask(call):
        return Attempt(Outcome.PERMANENT, result)
    asked_for = Question(requests_of(question["requests"]), question.get("state", ""), state)
    return Attempt(Outcome.UNKNOWN, result, question=asked_for)


def _files_of(call: PublishedCall, sent: object) -> tuple[ResultFile, ...]:
    """Parse a reply's `files`. Other modules may use the field otherwise: invalid ones are ignored.

    The call has succeeded all the same, and its result names the files in its text.
    """
    try:
        files = _FILES.validate_python(sent)
        for file in files:
            a2b_base64(file.data, strict_mode=True)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        where, why = ".".join(map(str, fault["loc"]))[:_SHOWN_PLACE], fault["msg"]
        log.warning("module_files_ignored", call_id=call.call_id, tool=call.tool_name, error=f"{where}: {why}")
    except ValueError as exc:
        log.warning("module_files_ignored", call_id=call.call_id, tool=call.tool_name, error=str(exc))
    else:
        if len(files) <= MOST_FILES:
            return files
        error = f"there are {len(files)}; at most {MOST_FILES} are taken"
        log.warning("module_files_ignored", call_id=call.call_id, tool=call.tool_name, error=error)
    return ()


class ModuleReply(ModuleMessage):
    """A module's reply. Unknown fields are ignored: the effect has happened.

    Of the fields that a `ToolResult` has beyond these, only `effect_state`, `retryable` and the `error_code` `timed_out` or
    `outcome_unknown` are believed, and only where the module says that it failed: nothing else can know. Any other value of
    theirs counts as absent. `note` is for the model beside a result; `unchecked` says why the result is not held against
    the tool's own schema.
    """

    model_config = ConfigDict(strict=True, defer_build=DEFERS_BUILD)

    tool_name: str
    success: bool
    result: Any = None
    error: str | None = None
    effect_state: EffectState | None = None
    retryable: bool = False
    error_code: Literal["timed_out", "outcome_unknown"] | None = None
    files: Any = None
    note: str | None = None
    unchecked: str | None = None

    @field_validator("note", "unchecked", mode="before")
    @classmethod
    def _believe_texts(cls, value: Any) -> Any:
        return readable(value) if isinstance(value, str) and value else None

    @field_validator("effect_state", mode="before")
    @classmethod
    def _believe_known_states(cls, value: Any) -> Any:
        return value if value in ("none", "done", "unknown") else None

    @field_validator("retryable", mode="before")
    @classmethod
    def _believe_a_plain_yes(cls, value: Any) -> bool:
        return value is True

    @field_validator("error_code", mode="before")
    @classmethod
    def _believe_that_it_is_unknown(cls, value: Any) -> Any:
        return value if value in ("timed_out", "outcome_unknown") else None

    @field_validator("error")
    @classmethod
    def _make_readable(cls, error: str | None) -> str | None:
        return None if error is None else readable(error)

    @property
    def is_stopped(self) -> bool:
        """Whether the tool was stopped, as the request's time was over or its module ends, or was lost: its effect is unknown."""
        return not self.success and self.error_code is not None and (self.effect_state or "unknown") == "unknown"

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> "ModuleReply":
        if self.tool_name != info.context:
            raise ValueError(f"it is for another tool, {readable(self.tool_name, max_bytes=_SHOWN_NAME)!r}")
        if not self.success and not self.error:
            raise ValueError("'success' is false and 'error' says nothing")
        return self


def judge_reply(call: PublishedCall, body: bytes) -> Attempt:
    """Return the attempt for the body of a reply with status 200."""
    try:
        document = loads_strict(body)
        match document:
            case {"success": True, "tool_name": call.tool_name} if document.get("error") is None and _PLAIN.issuperset(
                document
            ):  # nearly every reply, which needs no model
                return Attempt(Outcome.SUCCESS, ToolResult.ok(call.tool_name, document.get("result")))
        if is_acceptance(document):
            return judge_acceptance(call, document)
        if is_question(document):
            return judge_question(call, document)
        reply = ModuleReply.model_validate(document, context=call.tool_name)
    except ValidationError as exc:
        return _unusable(call, why_invalid(exc))
    except ValueError as exc:
        return _unusable(call, str(exc))
    return attempt_of(call, reply)


def attempt_of(call: PublishedCall, reply: ModuleReply) -> Attempt:
    """Return the attempt for a module's parsed reply."""
    if reply.success:
        files = _files_of(call, reply.files) if reply.files else ()
        result = ToolResult.ok(call.tool_name, reply.result, files=files)
        if reply.note:
            result = result.model_copy(update={"hint": reply.note})
        return Attempt(Outcome.SUCCESS, result, unchecked=reply.unchecked)
    if reply.is_stopped and reply.error_code is not None:
        end = unsuccessful(call, Outcome.UNKNOWN, reply.error_code, _why_stopped(call, reply))
        return replace(end, says_retryable=reply.retryable, is_stopped=True)
    state = reply.effect_state or "unknown"
    result = ToolResult(
        tool_name=call.tool_name,
        success=False,
        result=reply.result,
        error=reply.error,
        error_code="module_error",
        effect_state=state,
        retryable=state == "none",
    )
    return Attempt(Outcome.FAILED, result, says_retryable=reply.retryable)


def reason_of(call: PublishedCall, body: bytes) -> str | None:
    """Return why a module has turned a call away, if the body is a reply to this call that says it."""
    try:
        reply = ModuleReply.model_validate(loads_strict(body), context=call.tool_name)
    except ValueError:
        return None
    return None if reply.success or call.hides_results else reply.error


def with_reply(attempt: Attempt, call: PublishedCall, body: bytes) -> Attempt:
    """Return a server error, with what its body says of the effect and of a repeat, if that is a reply to this call."""
    try:
        reply = ModuleReply.model_validate(loads_strict(body), context=call.tool_name)
    except ValueError:
        return attempt
    if reply.success:  # contradicts the status
        return attempt
    result = attempt.result.model_copy(update={"effect_state": reply.effect_state or attempt.result.effect_state})
    return replace(attempt, result=result, says_retryable=reply.retryable)


def too_large(call: PublishedCall, exc: BodyTooLarge) -> Attempt:
    """Return the attempt of a call with a reply that is too large to be read."""
    text = f"Tool execution error: the module's reply is larger than {exc.limit} bytes"
    return unsuccessful(call, Outcome.UNKNOWN, "result_too_large", text)


def why_invalid(exc: ValidationError) -> str:
    """Return the first fault of a message from a module, in words that show nothing else of it."""
    error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    reason = error["msg"].removeprefix("Value error, ")
    if error["loc"]:
        return f"{error['loc'][0]!r}: {reason}"
    return "it is not an object" if error["type"] == "model_type" else reason


def _why_stopped(call: PublishedCall, reply: ModuleReply) -> str:
    """Return the message of a tool that was stopped, or lost: ours if a module's messages are hidden, because the code is ours."""
    if reply.error_code == "timed_out":
        return "Tool execution timed out: the module has stopped the tool."
    if call.hides_results or not reply.error:
        return "Tool execution error: the module has lost the call in the middle."
    return reply.error


def _unusable(call: PublishedCall, reason: str) -> Attempt:
    text = f"Tool execution error: the module's reply is invalid: {reason}"
    return unsuccessful(call, Outcome.UNKNOWN, "invalid_response", text)


def is_stream(response: ModuleResponse) -> bool:
    """Return whether the module answers in lines."""
    content_type = response.field("content-type") or ""
    if content_type == _PLAIN_JSON:  # nearly always
        return False
    return re.split("[;,]", content_type, maxsplit=1)[0].strip().lower() == CONTENT_TYPE


async def read_last_line(response: ModuleResponse, limit: int) -> bytes:
    """Return the reply, at most `limit` bytes. The lines before it are reported: of progress, the latest of each piece that arrives.

    Raises `BodyTooLarge`, `BodyUnreadable` and `NoReply`.
    """
    encoding = (response.field("content-encoding") or "identity").strip().lower()
    if encoding != "identity":  # we asked for none
        raise BodyUnreadable("lines of progress must not be compressed")
    lines, pace = _Lines(limit), _Pace()
    while chunk := await response.read_chunk():
        lines.feed(chunk)
        await asyncio.sleep(pace.pause(lines.progress_bytes))
    return lines.finish()


class _Pace:
    """The pace of reading pieces."""

    def __init__(self) -> None:
        self._begun = machine_clock.monotonic()

    def pause(self, taken: int) -> float:
        """Seconds to wait after so many bytes in all; 0 unless they are a flood."""
        due = (taken - _BYTES_AT_ONCE) / _BYTES_A_SECOND
        return max(0.0, self._begun + due - machine_clock.monotonic())


class _Lines:
    """Takes the lines in piece by piece."""

    def __init__(self, limit: int) -> None:
        self.progress_bytes = 0  # and of what else is no reply
        self._limit = limit
        self._rest = bytearray()  # of a line that has not ended
        self._is_passed_over = False  # that line
        self._reply = b""
        self._perhaps = b""  # a long line that begins like progress: the reply, if nothing comes after it

    def feed(self, chunk: bytes) -> None:
        """Take in what was sent next."""
        latest = None
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            self._add(line)
            if (found := self._ended()) is None:
                continue
            if "log" in found:
                _tell_log(found["log"])
            latest = found if "progress" in found else latest
        self._add(rest)
        if latest is not None:
            tell_progress(latest)

    def finish(self) -> bytes:
        """Return the reply, when all was sent."""
        self._ended()
        if not (self._reply or self._perhaps):
            raise BodyUnreadable("it ends without a reply after its lines of progress")
        return self._reply or self._perhaps

    def _add(self, part: bytes) -> None:
        if len(self._rest) + len(part) > max(self._limit, _LINE_BYTES):
            start = self._rest[:_HEAD] + part[:_HEAD]
            if not self._is_passed_over and not _BEGINS_AS_REPORT.match(start):
                raise BodyTooLarge(self._limit)
            self._is_passed_over = True
        if self._is_passed_over:
            self.progress_bytes += len(part)
        else:
            self._rest += part

    def _ended(self) -> dict[str, Any] | None:
        """Take a whole line: progress, a log message, or the reply, which must be the last."""
        line, was_passed_over = bytes(self._rest), self._is_passed_over
        self._rest.clear()
        self._is_passed_over = False
        if not was_passed_over and (not line or line.isspace()):
            self.progress_bytes += len(line) + 1
            return None
        if self._reply:
            raise BodyUnreadable("a line that is neither progress, nor a log message, nor the last one")
        self._perhaps = b""
        found = None if was_passed_over or len(line) > _LINE_BYTES else _report_in(line)
        if found is not None or was_passed_over:
            self.progress_bytes += len(line) + 1
        elif len(line) > self._limit:
            raise BodyTooLarge(self._limit)
        elif len(line) > _LINE_BYTES and _BEGINS_AS_REPORT.match(line):
            self.progress_bytes += len(line) + 1
            self._perhaps = line
        else:
            self._reply = line
        return found


def _report_in(line: bytes) -> dict[str, Any] | None:
    """Return the line's fields, if it is progress or a log message; anything else can only be the reply, which is judged as such.

    More is accepted as progress than the form allows: a mistake in displayed information must not cost the call's
    result.
    """
    try:
        fields = json.loads(line.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not fields.keys() & _REPORTS or fields.keys() & {"success", "tool_name"}:
        return None
    return fields


def tell_progress(fields: dict[str, Any]) -> None:
    """Report a module's `progress` and `message`. A share that lies a little outside, as rounding makes it, is taken for the nearer end."""
    fraction, message = fields["progress"], fields.get("message")
    is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    known = fraction if is_number and (isinstance(fraction, int) or math.isfinite(fraction)) else None
    report(known, readable(message if isinstance(message, str) else "")[:LONGEST_MESSAGE])


def _tell_log(fields: object) -> None:
    """Pass on what a module logs, where the caller of its call wants that."""
    sink = current_log()
    if sink is not None and (message := log_message_in(fields)) is not None:
        sink.pass_on(message)
