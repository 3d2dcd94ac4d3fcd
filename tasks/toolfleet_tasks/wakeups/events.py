"""Words what a conversation learns of a job's end, small enough to be kept and sent, and what came of telling it.

Each is a line of JSON in one field, written in the step that ends a wake-up; the latest 4,000 bytes of them are kept.

A place names fields and items of JSON, and nothing of Python's. All are filled in one go: braces in a value are text.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from toolfleet_registry.contracts import ErrorCode
from toolfleet_registry.contracts.jobs import JobSpec, WakeKind, WakeUp
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.policy.redaction import REDACTED
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.messages.ids import is_program
from toolfleet_tasks.messages.signing import Seal

WakeupEnd: TypeAlias = Literal["accepted", "read", "given_up", "dropped"]
"""A core or the fleet has accepted it; a reader of the conversation has confirmed it; none did in its time; or an operator dropped it."""

FIELD: Final = "outcomes"
"""Of a job's record."""

_ENDS: Final[frozenset[str]] = frozenset(get_args(WakeupEnd))
_LONGEST = 200  # characters of a name, and of an id

# One way only to read each text, so that it takes no longer than the text is.
_PLACE = re.compile(r"\{([A-Za-z_]\w*(?:\.[^\s{}.]+)*)\}")
_LONGEST_VALUE = 4_000  # characters
_MOST_CHARACTERS = 16_000  # of all values of one message: a model has to read it
_LONGEST_INDEX = 6  # digits
_MOST_NAMED = 10  # places that are not filled, of which it is told
_LONGEST_NAMED = 100  # characters of one

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)

End = Literal["completed", "failed", "timed_out"]

_TYPES: Final[dict[End, Literal["job.completed", "job.failed", "job.timed_out"]]] = {
    "completed": "job.completed",
    "failed": "job.failed",
    "timed_out": "job.timed_out",
}

MAX_RESULT_BYTES: Final = 64_000
"""The size of a result as JSON: wake-ups wait in Redis, and a model has to read them."""

_PREVIEW_CHARACTERS = 4_000
_LONGEST_ERROR = 2_000  # characters


@dataclass(frozen=True, slots=True)
class WakeupOutcome:
    """The outcome of one wake-up."""

    wake_id: str
    """The wake-up's id."""
    end: WakeupEnd
    """What became of it."""
    at: float
    """When, in seconds since the epoch."""
    by: str
    """Who: the core's URL, the call that was published, a reader, a worker, or an operator and their key."""
    tries: int = 0
    """How many tries were begun."""
    under_way: bool = False
    """Whether a try was under way when it was dropped, which may still have been accepted."""


def outcome_line(wake_id: str, end: WakeupEnd, by: str, *, tries: int = 0, under_way: bool = False) -> str:
    """Return the record's line for a wake-up that has ended now: ASCII JSON in one line."""
    at = round(fleet_clock.now(), 3)
    outcome = WakeupOutcome(wake_id[:_LONGEST], end, at, by[:_LONGEST], tries, under_way)
    return json.dumps({name: value for name, value in asdict(outcome).items() if value}, separators=(",", ":"))


def read_outcomes(text: bytes | str | None) -> Sequence[WakeupOutcome]:
    """Parse a record's outcomes, oldest first. Unreadable ones are left out."""
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else text or "").splitlines()
    return [outcome for line in lines if (outcome := _read(line)) is not None]


def _read(line: str) -> WakeupOutcome | None:
    try:
        said: Any = json.loads(line)
        wake_id, end, at, by = said["wake_id"], said["end"], float(said["at"]), said.get("by", "")
        tries, under_way = int(said.get("tries", 0)), said.get("under_way") is True
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    if not (isinstance(wake_id, str) and isinstance(by, str) and isinstance(end, str) and end in _ENDS):
        return None
    known: Any = end
    return WakeupOutcome(wake_id, known, at, by, tries, under_way)


class _Nothing(Exception):
    """There is no such value."""


def has_places(*texts: str | None) -> bool:
    """Return whether any of the texts has a place that may be filled."""
    return any(text and _PLACE.search(text) for text in texts)


def filled_in(text: str, job_id: str, result: Any, *, has_result: bool, is_hidden: bool) -> tuple[str, tuple[str, ...]]:
    """The text with its values, and the first places for which there is none: these stay as they stand. Never fails.

    A text is filled in as it is, other values as JSON, and too long ones only with their beginning. `is_hidden`: the result
    is sensitive, and shown as such.
    """
    filling = _Filling(job_id, REDACTED if is_hidden else result, has_result=has_result, is_hidden=is_hidden)
    return _PLACE.sub(filling, text), tuple(filling.unknown)[:_MOST_NAMED]


class _Filling:
    """The values of all places, as long as there is room."""

    def __init__(self, job_id: str, result: Any, *, has_result: bool, is_hidden: bool) -> None:
        self._job_id, self._result, self._has_result, self._is_hidden = job_id, result, has_result, is_hidden
        self._left = _MOST_CHARACTERS
        self.unknown = dict[str, None]()

    def __call__(self, place: re.Match[str]) -> str:
        if self._left <= 0:  # nor is anything large written out again and again
            return "…"
        try:
            value = self._value_of(place[1])
        except _Nothing:
            self.unknown[place[1][:_LONGEST_NAMED]] = None
            return place[0]
        shown = _cut(value, min(_LONGEST_VALUE, self._left))
        self._left -= len(shown)
        return shown

    def _value_of(self, named: str) -> str:
        name, *path = named.split(".")
        if name == "job_id" and not path:
            return self._job_id
        if name != "result" or not (self._has_result or self._is_hidden):
            raise _Nothing
        return _written(self._result if self._is_hidden else _found(self._result, path))


def _found(value: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and _index(step) < len(value):
            value = value[_index(step)]
        else:
            raise _Nothing
    return value


def _index(step: str) -> int:
    if not (step.isascii() and step.isdigit() and len(step) <= _LONGEST_INDEX):
        raise _Nothing
    return int(step)


def _written(value: Any) -> str:
    """The value as JSON, as far as it may be shown: a result of megabytes would hold the loop."""
    if isinstance(value, str):
        return value
    parts, length = list[str](), 0
    try:
        for part in _JSON.iterencode(value):
            parts.append(part)
            if (length := length + len(part)) > _LONGEST_VALUE:
                break
    except (ValueError, TypeError, RecursionError):
        raise _Nothing from None
    return "".join(parts)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def bounded_wake(
    spec: JobSpec,
    end: End,
    *,
    kind: WakeKind = "continue",
    wake_id: str,
    at: float,
    result: Any = None,
    shown: Any = None,
    error: str | None = None,
    error_code: ErrorCode | None = None,
    is_last_round: bool = False,
) -> WakeUp:
    """Return the wake-up of a job, or a round of one, that ended at `at` (seconds since the epoch). `result` is its last poll's. Never fails.

    Told in the job's own message, filled in, and with what went wrong if it did not complete. Of a result over 64 kB, or one
    that is no JSON, only the beginning is told; of one that is kept as an artifact its preview, `shown`.
    """
    error = error if error is None else _text(error)[:_LONGEST_ERROR]
    conversation, last = spec.conversation, spec.poll or spec.start
    kept, preview = _within_bounds(result if shown is None else shown)
    return WakeUp(
        type=_TYPES[end],
        kind=kind,
        wake_id=wake_id,
        job_id=spec.job_id,
        timestamp=at,
        conversation_id=conversation.conversation_id,
        user_id=spec.user_id,
        platform=conversation.platform,
        platform_channel_id=conversation.platform_channel_id,
        platform_thread_id=conversation.platform_thread_id,
        message=_message(spec, end, result, error, is_last_round=is_last_round),
        name=spec.name,
        tool_name=None if last is None else last.tool_name,
        result=kept,
        result_preview=preview,
        is_truncated=preview is not None or shown is not None,
        error=error,
        error_code=error_code,
    )


def wake_body(wake: WakeUp) -> str:
    """Return a wake-up as it is kept and sent: ASCII JSON with every field, for readers in any language."""
    return json.dumps(dict(wake), allow_nan=False, separators=(",", ":"))


def opened_wake(body: str, seal: Seal, *, wake_id: str, kind: str) -> str:
    """Return the wake-up as it is sent. Raises `MessageRefused` if it is not the fleet's, or another one than this."""
    text = seal.read(body)
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict) or (read.get("wake_id"), read.get("kind", "continue")) != (wake_id, kind):
        raise MessageRefused("The news cannot be read, or are other news.")
    return text


def unfilled_places(spec: JobSpec, end: End, result: Any) -> tuple[str, ...]:
    """The places of the message that this end tells, for which there is nothing: they stay as they stand."""
    return _filled(spec, end, result)[1]


def _message(spec: JobSpec, end: End, result: Any, error: str | None, *, is_last_round: bool) -> str:
    kind = "program" if is_program(spec.job_id) else "job"
    what = f"The {kind} {spec.name!r}" if spec.name else f"The {kind}"
    happened = {"completed": "has completed", "failed": "has failed", "timed_out": "has not ended in time"}[end]
    why = (error or "").removeprefix("The job has failed: ").removeprefix("The job has timed out: ")
    outcome = f"{what} {happened}{': ' + why if why and end != 'completed' else '.'}"
    own, _ = _filled(spec, end, result)
    parts = [own] if own else []
    if end != "completed" or not parts:  # the message was written for success
        parts.append(outcome)
    if is_last_round:  # a user who was told of a round expects the next one
        parts.append("The job is over: no further round follows.")
    recurs = spec.schedule is not None and spec.schedule.cron is not None
    if spec.workflow_id is not None and end != "completed" and not recurs:  # a round that failed ends nothing else
        parts.append(f"The other jobs of its workflow {spec.workflow_id!r} that have not ended are cancelled.")
    if spec.hides_results:
        parts.append("Its result is not told here: its tool's results are sensitive, and not kept.")
    return "\n\n".join(parts)


def _filled(spec: JobSpec, end: End, result: Any) -> tuple[str, tuple[str, ...]]:
    """The job's own message for such an end, and what of it could not be filled in."""
    own = (spec.on_failure_message if end != "completed" else None) or spec.message or ""
    if not spec.fills:
        return own, ()
    brings_one = end == "completed" and (spec.poll or spec.start) is not None
    has_result = result is not None or brings_one
    return filled_in(own, spec.job_id, result, has_result=has_result, is_hidden=spec.hides_results)


def _within_bounds(result: Any) -> tuple[Any, str | None]:
    """The result, or the beginning of it."""
    try:
        text = json.dumps(result, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        return None, _text(result)[:_PREVIEW_CHARACTERS]
    if len(text) <= MAX_RESULT_BYTES:
        return result, None
    shown = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return None, shown[:_PREVIEW_CHARACTERS]


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - deeper than Python goes, or a user's own object
        return "[unreadable]"
