"""Tells what happened to one call, for an operator: when it waited and ran, each attempt, and what was decided on its way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolfleet_tasks.ledger.audit import AuditLine

_MOST_ATTEMPTS = 100  # of a log that anybody may have written

CallPhase = Literal["queued", "ran"]


@dataclass(frozen=True, slots=True)
class StoryAttempt:
    """An attempt that has ended: its number, how, and after how many ms, if a worker has seen its end."""

    number: int
    outcome: str
    ms: int | None = None


@dataclass(frozen=True, slots=True)
class StorySpan:
    """A part of a call's time: in which it waited for its last attempt, or in which that ran. Milliseconds since the epoch."""

    phase: CallPhase
    begins: float
    ends: float


@dataclass(frozen=True, slots=True)
class CallStory:
    """`lines` are the call's in the audit, oldest first: of one that has not ended there are none.

    `state`: what the ledger says of it, for as long as it knows the call; `None`: it does not.
    """

    call_id: str
    lines: list[AuditLine]
    attempts: list[StoryAttempt]
    spans: list[StorySpan]
    state: str | None = None


RECORD_FIELDS = ("state", "token", "begun", "log")
"""Of the ledger's record: what a story is made of."""


def story_of(call_id: str, lines: list[AuditLine], values: Sequence[bytes | str | None]) -> CallStory | None:
    """What is known of a call by its lines and the values of `RECORD_FIELDS`; `None`: nothing."""
    record = dict[str, str | None](zip(RECORD_FIELDS, map(_text, values), strict=True))
    if not lines and not any(record.values()):
        return None
    return CallStory(call_id, lines, _attempts(record["log"] or ""), _spans(lines), _state(record))


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


def _spans(lines: Sequence[AuditLine]) -> list[StorySpan]:
    """Of the last line that has times: its moment is the end."""
    for line in reversed(lines):
        ended, queued, ran = (_number(line.get(name)) for name in ("ts", "queued_ms", "duration_ms"))
        if ended is None or (queued is None and ran is None):
            continue
        begun = ended * 1000 - (ran or 0)
        spans = [] if queued is None else [StorySpan("queued", begun - queued, begun)]
        return spans if ran is None else [*spans, StorySpan("ran", begun, ended * 1000)]
    return []


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: bytes | str | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
