"""Reads a module's answer to `POST /execute` strictly, because what follows depends on it."""

from binascii import a2b_base64
from dataclasses import replace
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError, ValidationInfo, field_validator, model_validator

from toolfleet_registry.contracts import EffectState, ModuleMessage, PublishedCall, ResultFile, ToolResult
from toolfleet_registry.contracts.calls import MOST_FILES
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.outcomes import Attempt, Outcome
from toolfleet_registry.errors import BodyTooLarge
from toolfleet_registry.system.http_bodies import loads_strict
from toolfleet_registry.system.loggers import get_logger
from toolfleet_workers.executors.error_text import readable
from toolfleet_workers.executors.http.acceptance import is_acceptance, judge_acceptance
from toolfleet_workers.executors.http.input_reply import is_question, judge_question
from toolfleet_workers.runner import unsuccessful

log = get_logger(__name__)

_FILES = TypeAdapter(tuple[ResultFile, ...])

_SHOWN_PLACE = 80  # characters of a place, which may have been made up

_PLAIN = frozenset({"tool_name", "success", "result", "error"})
_SHOWN_NAME = 100  # bytes of a foreign name in a reason


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
    """What a module says about a call. Fields that we do not know are ignored: the effect has happened.

    Of the fields that a `ToolResult` has beyond these, only `effect_state`, `retryable` and the `error_code` `timed_out` or
    `outcome_unknown` are believed, and only where the module says that it failed: nobody else can know. Any other value of
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
    def _believe_that_nobody_knows(cls, value: Any) -> Any:
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
        if _is_plain_success(document, call.tool_name):  # nearly every reply, which needs no model
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
    """A server error, with what its body says of the effect and of a repeat, if that is a reply to this call."""
    try:
        reply = ModuleReply.model_validate(loads_strict(body), context=call.tool_name)
    except ValueError:
        return attempt
    if reply.success:  # contradicts the status
        return attempt
    result = attempt.result.model_copy(update={"effect_state": reply.effect_state or attempt.result.effect_state})
    return replace(attempt, result=result, says_retryable=reply.retryable)


def too_large(call: PublishedCall, exc: BodyTooLarge) -> Attempt:
    """Return the attempt of a call whose reply is too large to be read."""
    text = f"Tool execution error: the module's reply is larger than {exc.limit} bytes"
    return unsuccessful(call, Outcome.UNKNOWN, "result_too_large", text)


def why_invalid(exc: ValidationError) -> str:
    """The first fault of a message from a module, in words that show nothing else of it."""
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


def _is_plain_success(document: Any, tool_name: str) -> bool:
    """Return whether a reply contains a success and its result, and nothing else."""
    return (
        type(document) is dict
        and document.get("success") is True
        and document.get("error") is None
        and document.get("tool_name") == tool_name
        and _PLAIN.issuperset(document)
    )


def _unusable(call: PublishedCall, reason: str) -> Attempt:
    text = f"Tool execution error: the module's reply is invalid: {reason}"
    return unsuccessful(call, Outcome.UNKNOWN, "invalid_response", text)
