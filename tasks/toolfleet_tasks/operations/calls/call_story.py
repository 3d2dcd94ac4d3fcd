"""Tells what happened to one call, for an operator: when it waited, was claimed and ran, each attempt, and what was decided on its way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolfleet_tasks.ledger.audit import AuditLine
from toolfleet_tasks.ledger.contents import CallContents
from toolfleet_tasks.operations.calls.call_spans import LineTimes, StorySpan, spans_of
from toolfleet_tasks.operations.calls.call_trail import holder_of, parts_of

_MOST_ATTEMPTS = 100  # of a log that anybody may have written


@dataclass(frozen=True, slots=True)
class StoryAttempt:
    """An attempt that has ended: its number, how, and after how many ms, if a worker has seen its end."""

    number: int
    outcome: str
    ms: int | None = None


@dataclass(frozen=True, slots=True)
class CallStory:
    """`lines` are the call's in the audit, oldest first: of one that has not ended there are none.

    `state`: what the ledger says of it, for as long as it knows the call; `None`: it does not. `spans`: the parts of its time, in
    their order. `polls`: how often its module was asked where it is, of one that was accepted. `contents`: what it was asked
    and what it answered, where that is kept and the reader may see it.
    """

    call_id: str
    lines: list[AuditLine]
    attempts: list[StoryAttempt]
    spans: list[StorySpan]
    state: str | None = None
    polls: int | None = None
    contents: CallContents | None = None


RECORD_FIELDS = ("state", "token", "begun", "log", "by", "trail", "polls", "replica")
"""Of the ledger's record: what a story is made of."""


def story_of(
    call_id: str, lines: list[AuditLine], values: Sequence[bytes | str | None], *, stored_at: float | None = None
) -> CallStory | None:
    """What is known of a call by its lines and the values of `RECORD_FIELDS`; `None`: nothing.

    `stored_at`: when (ms) the last line, and the result with it, was written.
    """
    record = dict[str, str | None](zip(RECORD_FIELDS, map(_text, values), strict=True))
    if not lines and not any(record.values()):
        return None
    line = next((each for each in reversed(lines) if _number(each.get("ts")) is not None), {})
    trail = _said(line.get("trail")) or record["trail"]
    claimed, worker = holder_of(record["by"] if record["state"] else record["token"])
    times = LineTimes(
        ended=_ms(line.get("ts")),
        queued=_number(line.get("queued_ms")),
        ran=_number(line.get("duration_ms")),
        own=_own(line.get("own_ms")),
        worker=_said(line.get("worker")) or worker,
        replica=_said(line.get("replica")) or _said(record["replica"]),
        outcome=_said(line.get("outcome")),
        attempts=_count(line.get("attempts")),
        claimed=claimed,
        stored=stored_at,
    )
    spans = spans_of(parts_of(trail), times, waits_for=_waits_for(record), running=_is_running(record, worker))
    return CallStory(
        call_id,
        lines,
        _attempts(record["log"] or ""),
        spans,
        _state(record),
        _count(line.get("polls")) or _count(record["polls"]),
    )


def _waits_for(record: Mapping[str, str | None]) -> str | None:
    """What it waits for that has not ended."""
    if record["state"]:
        return None
    return {"asked": "input", "approval": "approval", "parked": "accepted"}.get(record["token"] or "")


def _is_running(record: Mapping[str, str | None], worker: str | None) -> int | None:
    """The number of the attempt that runs now, of a call that a known worker has."""
    begun = _count(record["begun"])
    return begun if not record["state"] and worker is not None else None


def _state(record: Mapping[str, str | None]) -> str | None:
    """As `ledger/read` has it, but that an unknown record says nothing."""
    if record["state"]:
        return record["state"]
    waiting = {"asked": "input_required", "approval": "waiting_approval"}.get(record["token"] or "")
    return waiting or ("running" if record["token"] else "retrying" if record["begun"] else None)


def _attempts(log: str) -> list[StoryAttempt]:
    """Of the ledger's log: `<number> <outcome> <ms>;` for each."""
    attempts = list[StoryAttempt]()
    for entry in log.split(";")[:_MOST_ATTEMPTS]:
        number, _, rest = entry.partition(" ")
        outcome, _, ms = rest.partition(" ")
        if number.isascii() and number.isdecimal() and outcome:
            attempts.append(StoryAttempt(int(number), outcome, int(ms) if ms.isascii() and ms.isdecimal() else None))
    return attempts


def _own(value: Any) -> tuple[float, float] | None:
    if not isinstance(value, list) or len(value) != 2:  # noqa: PLR2004 - before and after
        return None
    before, after = map(_number, value)
    return None if before is None or after is None else (max(before, 0), max(after, 0))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _ms(value: Any) -> float | None:
    seconds = _number(value)
    return None if seconds is None else seconds * 1000


def _count(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None  # noqa: PLR2004 - digits
    number = _number(value)
    return None if number is None else int(number)


def _said(value: Any) -> str | None:
    return value or None if isinstance(value, str) else None


def _text(value: bytes | str | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
