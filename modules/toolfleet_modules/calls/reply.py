"""Builds the answers of `POST /execute`, and of `POST /status` about an accepted call: always JSON, and within its bounds."""

import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

from pydantic_core import PydanticSerializationError, to_jsonable_python

from toolfleet_registry.contracts import EffectState
from toolfleet_registry.contracts.attempts import UNEXPLAINED, check_acceptance
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.contracts.calls import MOST_FILES
from toolfleet_registry.contracts.inputs import check_requests, requests_of
from toolfleet_registry.functions.failures import InputRequired
from toolfleet_registry.functions.files import Gathered
from toolfleet_registry.system.http_bodies import loads_strict

_log = logging.getLogger("toolfleet.sdk")

_LATE = {"error_code": "timed_out"}  # the fleet's own code; its clock may be a moment behind
_LOST = {"error_code": "outcome_unknown"}  # as above, if the end was not seen
_LONGEST_ERROR = 4_000  # characters; the fleet shows a model 2 kB
_MOST_BYTES = 4  # of a character in UTF-8
_JSON = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
)  # made once: a reply takes no longer
_SURELY_FLAT = 90  # brackets; less deep than the fleet's limit

RESULT_BYTES = 4 * 2**20
"""How large a result may be, unless its module says otherwise."""

_THE_TOOL = "The tool"  # the one that was called takes its place


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply's JSON. `is_success` is its own statement; `surely_nothing`: that nothing has happened.

    `is_stopped`: the tool was stopped in the middle, and its effect is unknown. `handle`: the name of a call that the
    module has accepted and continues; empty for one that has ended. `is_question`: it asks something before it
    continues.
    """

    body: str
    is_success: bool = False
    surely_nothing: bool = False
    is_stopped: bool = False
    handle: str = ""
    is_question: bool = False

    @classmethod
    def success(
        cls,
        tool_name: str,
        result: Any,
        *,
        most_bytes: int,
        note: str = "",
        unchecked: str | None = None,
    ) -> Self:
        """Return the reply with a result; or if it cannot be sent, a failure that says so, and that the effect has happened.

        `note`: additional information for a model. `unchecked`: why the result is not validated against the tool's
        schema.
        """
        too_much = f"{tool_name} returned more than {most_bytes} bytes, which is all that can be sent: ask for less."
        if isinstance(result, str) and len(result) > most_bytes:  # seen before it is written, which takes its time
            return cls.failure(tool_name, too_much, effect_state="done")
        gathered = Gathered()
        try:
            content = {"tool_name": tool_name, "success": True, "result": _plain(result, gathered), "error": None}
            content |= {"note": note} if note else {}
            content |= {} if unchecked is None else {"unchecked": unchecked}
            written = [file.model_dump(exclude_none=True) for file in gathered.files]
            body = _written({**content, "files": written} if written else content)
        except (
            TypeError,
            ValueError,
            RecursionError,
            PydanticSerializationError,
            SystemExit,
            KeyboardInterrupt,
        ) as exc:
            _log.error("%s returned what is no JSON", tool_name, exc_info=exc)
            error = f"{tool_name} returned what cannot be sent as JSON ({type(exc).__name__}); its {UNEXPLAINED}"
            return cls.failure(tool_name, error, effect_state="done")
        if len(gathered.files) > MOST_FILES:
            error = (
                f"{tool_name} returned {len(gathered.files)} files; at most {MOST_FILES} can be sent: ask for fewer."
            )
            return cls.failure(tool_name, error, effect_state="done")
        if len(body) * _MOST_BYTES > most_bytes and len(body.encode()) > most_bytes:
            return cls.failure(tool_name, too_much, effect_state="done")
        return cls(body, is_success=True)

    @classmethod
    def failure(
        cls,
        tool_name: str,
        error: str,
        *,
        effect_state: EffectState | None = None,
        retryable: bool = False,
        result: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return a failure in words for a model. `retryable`: a repeat may help and does no harm. `result`: small details for programs."""
        readable = error.encode("utf-8", "replace").decode()[:_LONGEST_ERROR]
        content: dict[str, Any] = {"tool_name": tool_name, "success": False, "result": result, "error": readable}
        if effect_state is not None:
            content["effect_state"] = effect_state
        if retryable:
            content["retryable"] = True
        return cls(_written(content), surely_nothing=effect_state == "none")

    @classmethod
    def lost(cls, tool_name: str, error: str, *, retryable: bool = False) -> Self:
        """Return the reply of a lost run: its process is gone, or has not answered, and its end was not seen.

        `error` and `retryable` as of `failure`.
        """
        failure = cls.failure(tool_name, error, effect_state="unknown", retryable=retryable)
        return cls(_written({**json.loads(failure.body), **_LOST}), is_stopped=True)

    @classmethod
    def accepted(cls, tool_name: str, handle: str, *, poll_after_seconds: float | None = None) -> Self:
        """Return the reply of a module that has started and continues by itself: the fleet asks `/status` for `handle`, first after so many seconds.

        Raises `ValueError` for a handle that is not 1 to 512 printable characters, and for an invalid time.
        """
        check_acceptance(handle, poll_after_seconds)
        content: dict[str, Any] = {"tool_name": tool_name, "accepted": True, "handle": handle}
        if poll_after_seconds is not None:
            content["poll_after_seconds"] = poll_after_seconds
        return cls(_written(content), handle=handle)

    @classmethod
    def question(
        cls, tool_name: str, requests: Mapping[str, Any], state: str = "", *, effect_state: EffectState = "unknown"
    ) -> Self:
        """Return the reply of a module that asks the caller before it continues.

        Raises `ValueError` for what `check_requests` refuses.
        """
        check_requests(requests, state)
        asked = {key: one.model_dump() for key, one in requests_of(requests).items()}
        content = {"tool_name": tool_name, "input_required": {"requests": asked, "state": state}}
        return cls(_written({**content, "effect_state": effect_state}), is_question=True)

    @classmethod
    def kept(cls, body: str, *, is_success: bool = False) -> Self:
        """Return a stored reply, from its JSON."""
        may_go_on = not is_success and ('"accepted"' in body or '"input_required"' in body)
        content = json.loads(body) if may_go_on else {}
        handle = content.get("handle")
        return cls(
            body,
            is_success=is_success,
            handle=handle if isinstance(handle, str) else "",
            is_question="input_required" in content,
        )

    def rewritten(self, rewrite: Callable[[bytes], bytes]) -> "Reply":
        """Return this reply with its JSON rewritten."""
        written = self.body.encode()
        other = rewrite(written)
        return self if other is written else replace(self, body=other.decode())

    def late(self) -> "Reply":
        """Return the reply of a tool that has ended as its time was over.

        A failure with an unknown effect becomes that of a stopped one.
        """
        if self.is_success or self.surely_nothing or self.is_stopped or self.handle or self.is_question:
            return self
        content = json.loads(self.body)
        if content.get("effect_state", "unknown") != "unknown":
            return self
        return replace(self, body=_written({**content, **_LATE}), is_stopped=True)

    @classmethod
    def stopped(cls, tool_name: str, *, is_late: bool) -> Self:
        """Return the reply of a tool that was stopped while it ran. `is_late`: because the request's time was over."""
        error = f"{tool_name} was stopped: its time was over." if is_late else f"{tool_name} was stopped in the middle."
        content = {"tool_name": tool_name, "success": False, "result": None, "error": error, "effect_state": "unknown"}
        return cls(_written({**content, **(_LATE if is_late else _LOST)}), is_stopped=True)


def said_later(body: str) -> dict[str, Any]:
    """Return the content of a call's reply, for a later request.

    A failure includes its effect: the default is not `done` there.
    """
    said: dict[str, Any] = json.loads(body)
    return {"effect_state": "unknown", **said} if said.get("success") is False else said


def _plain(result: Any, gathered: Gathered) -> Any:
    """Convert a result to JSON's own types: pydantic models, dataclasses and dates in their usual forms, files as labels."""
    if isinstance(result, Iterator):  # it may be endless
        raise TypeError(f"a {type(result).__name__} is no result")
    return to_jsonable_python(result, inf_nan_mode="constants", context=gathered, fallback=gathered.add)


def _written(content: dict[str, Any]) -> str:
    """Write the JSON. Raises `ValueError` for NaN, lone surrogates and content too deep for the fleet to read."""
    body = _JSON.encode(content)
    data = body.encode()
    if max(body.count("["), body.count("{")) > _SURELY_FLAT:
        loads_strict(data)
    return body


def question_reply(tool_name: str, context: Context, asked: InputRequired) -> Reply:
    """Return the question, or the failure of a call if its caller takes none."""
    if context.takes_input:
        return Reply.question(tool_name, asked.requests, asked.state, effect_state=asked.effect_state)
    text = f"{tool_name} asks for more input, and its caller cannot be asked."
    return Reply.failure(tool_name, text, effect_state=asked.effect_state)


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """The state of an accepted call.

    Made by `running`, `done`, `failed`, `ended`, `asks`, `asking`, `unknown` or `none`.
    """

    state: Literal["running", "done", "input_required", "unknown", "none"]
    """Running; ended, with a `reply`; waiting for an answer; not known; or never done, and it never will be."""
    reply: Reply | None = None
    """The reply of a call that is `done`, or the question of one that waits."""
    progress: float | None = None
    """How much is done, from 0 to 1, of one that is `running`."""
    message: str = ""
    """A message about the progress."""
    poll_after_seconds: float | None = None
    """When the fleet should ask again, in seconds; `None`: the fleet decides."""

    @classmethod
    def running(
        cls, progress: float | None = None, message: str = "", *, poll_after_seconds: float | None = None
    ) -> Self:
        """Return that the call is still running.

        Args:
            progress: How much is done, from 0 to 1, if that is known.
            message: A message about the progress.
            poll_after_seconds: When the fleet should ask again; `None`: the fleet decides.
        """
        return cls("running", progress=progress, message=message, poll_after_seconds=poll_after_seconds)

    @classmethod
    def done(cls, result: Any, *, most_bytes: int = RESULT_BYTES) -> Self:
        """Return that the call has succeeded.

        Args:
            result: The tool's return value.
            most_bytes: The size of a result from which it is a failure that says so.
        """
        return cls("done", Reply.success(_THE_TOOL, result, most_bytes=most_bytes))

    @classmethod
    def failed(cls, error: str, *, effect_state: Literal["none", "done", "unknown"] = "unknown") -> Self:
        """Return that the call has failed.

        Args:
            error: What went wrong, in words for a model.
            effect_state: Whether the call's effect has happened all the same.
        """
        return cls("done", Reply.failure(_THE_TOOL, error, effect_state=effect_state))

    @classmethod
    def ended(cls, reply: Reply) -> Self:
        """Return that the call has ended with this reply."""
        return cls("done", reply)

    @classmethod
    def asks(cls, requests: Mapping[str, Any], state: str = "", *, effect_state: EffectState = "unknown") -> Self:
        """Return that the call continues once its questions are answered.

        Args:
            requests: The questions by keys, each `{"method": …, "params": {…}}`.
            state: A text that comes back to the module with the answers.
            effect_state: Whether the call's effect has happened by now.

        Raises:
            ValueError: A request is invalid, or there are too many.
        """
        return cls.asking(Reply.question(_THE_TOOL, requests, state, effect_state=effect_state))

    @classmethod
    def asking(cls, reply: Reply) -> Self:
        """Return that the call continues once the question of this reply is answered."""
        return cls("input_required", reply)

    @classmethod
    def unknown(cls) -> Self:
        """Return that the call's outcome is unknown."""
        return cls("unknown")

    @classmethod
    def none(cls) -> Self:
        """Return that the call was never done, and never will be."""
        return cls("none")


Follower: TypeAlias = Callable[..., Awaitable[StatusAnswer]]
"""Returns the state of work that a module has accepted: `follower(call_id, handle, *, cancel, inputs=None)`.

The call `call_id` was accepted under `handle`; `cancel`: it is cancelled, so end it if you can. `inputs`: its latest answers
(`CallInputs`), from then on with each question. It is asked repeatedly, also after a restart, and must answer within some
seconds.
"""
