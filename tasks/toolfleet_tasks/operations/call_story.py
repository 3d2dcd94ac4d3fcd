"""Tells what happened to one call, for an operator: when it waited, was claimed and ran, each attempt, and what was decided on its way."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from toolfleet_tasks.ledger.audit import AuditLine
from toolfleet_tasks.ledger.contents import CallContents

CallPhase: TypeAlias = Literal[
    "queued", "claimed", "attempt", "module", "lost", "retry", "reclaim", "accepted", "input", "approval", "stored"
]
"""It waited in its queue; a worker asked the ledger for it; an attempt ran, and its module had it; an attempt's worker was heard of no more; it waited for its next attempt, or until its lease had run out; its module went on with it; it waited for an answer, or for people; its result was stored."""

_ROUNDED = 2.0  # ms, that moments which are written in different ways may differ by
_HOUR = 3_600_000.0  # ms that two clocks may differ by at most, or a span is none
_PHASES: dict[str, CallPhase] = {
    "queued": "queued",
    "retry": "retry",
    "reclaim": "reclaim",
    "accepted": "accepted",
    "input": "input",
    "approval": "approval",
}

_MOST_ATTEMPTS = 100  # of a log that may be forged

RECORD_FIELDS = ("state", "token", "begun", "log", "by", "trail", "polls", "replica")
"""Of the ledger's record: what a story is made of."""

TrailKind: TypeAlias = Literal["attempt", "accepted", "asked", "answered", "approved", "lost", "cut"]
"""An attempt has ended; its module goes on with it, or asks something, and was answered; people have approved the call; an attempt's worker was lost, or the call was ended meanwhile."""

_MOST = 100  # parts, of a trail that may be forged
_NONE = "-"
_MOMENT = re.compile(r"\d{1,16}", re.ASCII)
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "attempt": ("number", "claimed", "ms", "at", "outcome", "worker", "replica"),
    "accepted": ("number", "claimed", "ms", "at", "worker", "replica"),
    "asked": ("number", "claimed", "ms", "at", "worker", "replica"),
    "answered": ("number", "at"),
    "approved": ("number", "at"),
    "lost": ("number", "claimed", "seen", "at", "worker", "replica"),
    "cut": ("number", "claimed", "seen", "at", "worker", "replica"),
}

_NUMBERS = frozenset({"number", "claimed", "ms", "at", "seen"})


@dataclass(frozen=True, slots=True)
class TrailPart:
    """One part. Moments are in ms since the epoch: `at`, when it was written; `claimed`, when the worker asked for the call; `seen`, when a lost worker was last heard of."""

    kind: TrailKind
    number: int
    at: int
    claimed: int | None = None
    ms: int | None = None
    seen: int | None = None
    outcome: str | None = None
    worker: str | None = None
    replica: str | None = None

    @property
    def begun(self) -> int:
        """The start of its attempt, as far as that is known."""
        if self.ms is not None:
            return self.at - self.ms
        return self.claimed or self.seen or self.at


def parts_of(trail: str | None) -> Sequence[TrailPart]:
    """Parse its parts, in their order. Unreadable ones are left out: another version's, or foreign."""
    found = (_part(entry.split(" ")) for entry in (trail or "").split(";")[:_MOST])
    return [part for part in found if part is not None]


def holder_of(token: str | None) -> tuple[float | None, str | None]:
    """Return when (ms) a worker asked for the call that it holds by this token, and which worker: as far as the token says it."""
    _, _, rest = (token or "").partition("~")
    micros, _, worker = rest.partition("~")
    is_known = bool(worker) and re.fullmatch("[0-9a-f]{1,15}", micros) is not None
    return (int(micros, 16) / 1000, worker) if is_known else (None, None)


def _part(words: Sequence[str]) -> TrailPart | None:
    kind, *values = words
    names = _FIELDS.get(kind)
    if names is None or len(values) != len(names):
        return None
    said: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if name in _NUMBERS:
            if not _MOMENT.fullmatch(value):
                return None
            said[name] = int(value)
        elif value != _NONE:
            said[name] = value
    said["claimed"] = said.get("claimed") or None
    known: Any = kind
    return TrailPart(known, **said)


@dataclass(frozen=True, slots=True)
class StorySpan:
    """A part of a call's time. Milliseconds since the epoch, by the fleet's clock; `ends` is `None` of what goes on."""

    phase: CallPhase
    begins: float
    ends: float | None = None
    attempt: int | None = None
    """The attempt's number, or that of the question."""
    worker: str | None = None
    """Which worker had it."""
    replica: str | None = None
    """Which process of the module had it, of a module with several."""
    outcome: str | None = None
    """How the attempt has ended."""


@dataclass(frozen=True, slots=True)
class LineTimes:
    """The times of a call's last attempt, from its audit line and its record: ms, and ms since the epoch.

    `None`: unknown.
    """

    ended: float | None = None
    queued: float | None = None
    ran: float | None = None
    own: tuple[float, float] | None = None
    worker: str | None = None
    replica: str | None = None
    outcome: str | None = None
    attempts: int | None = None
    claimed: float | None = None
    stored: float | None = None


def spans_of(
    parts: Sequence[TrailPart],
    times: LineTimes,
    *,
    waits_for: str | None = None,
    running: int | None = None,
    requested_at: float | None = None,
) -> list[StorySpan]:
    """The parts of a call's time, in their order. `waits_for`: what it waits for now; `running`: the attempt that runs now.

    `requested_at`: when (ms) people were asked about it; it is published after their decision.
    """
    timeline = _Timeline(_published(times) if requested_at is None else requested_at)
    parts, times = _without_last(parts, times) if waits_for is None and running is None else (parts, times)
    for part in parts:
        timeline.take(part)
    if waits_for is not None:
        timeline.go_on(waits_for)
    elif running is not None:
        timeline.run_on(running, times)
    elif times.ended is not None:
        timeline.end(times, is_last_known=bool(parts) and parts[-1].kind == "cut")
    return timeline.spans


def _without_last(parts: Sequence[TrailPart], times: LineTimes) -> tuple[Sequence[TrailPart], LineTimes]:
    """The last attempt as its line has it, who knows better when it began: its module may have been asked once more before it ended."""
    if not parts or parts[-1].kind != "attempt" or times.ended is None or times.ran is None or not times.attempts:
        return parts, times
    last = parts[-1]
    claimed = times.claimed if last.claimed is None else last.claimed
    known = replace(times, claimed=claimed, worker=last.worker or times.worker, replica=last.replica or times.replica)
    return parts[:-1], replace(known, outcome=last.outcome)


def _published(times: LineTimes) -> float | None:
    if times.ended is None or times.queued is None:
        return None
    return times.ended - (times.ran or 0) - times.queued


class _Timeline:
    """`at`: until when all is said; `next_wait`: what the call waits for from then on."""

    def __init__(self, published: float | None) -> None:
        self.spans: list[StorySpan] = []
        self._at, self._next_wait = published, "queued"

    def take(self, part: TrailPart) -> None:
        match part.kind:
            case "approved":
                self._wait(part.at, "approval")
                self._next_wait = "queued"
            case "answered":
                self._wait(part.at, "input", part.number)
                self._next_wait = "queued"
            case "lost" | "cut":
                self._wait(part.begun)
                ends = max(part.seen or part.at, part.begun)
                self._add("lost" if part.kind == "lost" else "attempt", part.begun, ends, part)
                if part.kind == "lost":
                    self._at, self._next_wait = ends, "reclaim"
            case _:
                self._attempt(part)

    def _attempt(self, part: TrailPart) -> None:
        if part.kind == "attempt" and self._next_wait == "accepted":  # its module went on with it until then
            self._add("accepted", self._at or part.begun, part.at, part)
        else:
            self._claim(part.claimed, part.begun, part.worker)
            self._add("attempt", part.begun, part.at, part)
        waits = {"attempt": "retry", "accepted": "accepted", "asked": "input"}
        self._next_wait = waits[part.kind]

    def go_on(self, waits_for: str) -> None:
        """Start a span of waiting."""
        if self._at is not None:
            self.spans.append(StorySpan(_phase(waits_for), self._at))

    def run_on(self, attempt: int, times: LineTimes) -> None:
        """An attempt runs now, or its module goes on with it and is asked."""
        begun = self._at if times.claimed is None else times.claimed
        if self._next_wait == "accepted":
            self.go_on("accepted")
        elif begun is not None:
            self._wait(begun)
            self.spans.append(StorySpan("attempt", begun, None, attempt, times.worker, times.replica))

    def end(self, times: LineTimes, *, is_last_known: bool) -> None:
        """The last attempt, where no part of the trail has it, and the result."""
        ended = times.ended or 0.0
        if not is_last_known and times.ran is not None and times.attempts:
            begun = ended - times.ran
            if self._next_wait == "accepted":
                self._add_last("accepted", self._at or begun, ended, times)
            else:
                self._claim(times.claimed, begun, times.worker)
                self._add_last("attempt", begun, ended, times)
                self._module(begun, ended, times)
        elif times.queued is not None and self._at is not None:
            self._wait(ended)
        stored, at = times.stored, max(self._at or ended, ended)
        if stored is not None and times.outcome is not None and abs(stored - at) < _HOUR and self.spans:
            self.spans.append(StorySpan("stored", at, max(stored, at), worker=times.worker))

    def _module(self, begun: float, ended: float, times: LineTimes) -> None:
        """Add the module's part of the last attempt: all of it but the time that the worker has noted as its own."""
        if not self.spans or self.spans[-1].phase != "attempt":
            return
        before, after = times.own or (0.0, 0.0)
        first = min(begun + before, ended)
        self.spans.append(
            StorySpan("module", first, max(ended - after, first), self.spans[-1].attempt, None, times.replica)
        )

    def _claim(self, claimed: float | None, begun: float, worker: str | None) -> None:
        """The wait until a worker asked for the call, and that it asked."""
        asked = begun
        if claimed is not None and (self._at or 0.0) - _ROUNDED <= claimed <= begun:
            asked = min(max(claimed, self._at or 0.0), begun)
        self._wait(asked)
        if asked < begun:
            self.spans.append(StorySpan("claimed", asked, begun, worker=worker))
            self._at = begun

    def _wait(self, until: float, phase: str | None = None, number: int | None = None) -> None:
        """Add a wait. One that ends before it begins, by the clocks of two machines, took no time."""
        if self._at is not None:
            begins = min(self._at, until)
            self.spans.append(StorySpan(_phase(phase or self._next_wait), begins, until, number))
        self._at = until if self._at is None else max(self._at, until)

    def _add(self, phase: CallPhase, begins: float, ends: float, part: TrailPart) -> None:
        span = StorySpan(phase, begins, max(ends, begins), part.number, part.worker, part.replica, part.outcome)
        self.spans.append(replace(span, outcome="ended meanwhile") if part.kind == "cut" else span)
        self._at = max(ends, begins)

    def _add_last(self, phase: CallPhase, begins: float, ends: float, times: LineTimes) -> None:
        ends = max(ends, begins)
        span = StorySpan(phase, begins, ends, times.attempts, times.worker, times.replica, times.outcome)
        self.spans.append(span)
        self._at = ends


def _phase(name: str) -> CallPhase:
    return _PHASES[name]


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
    and what it answered, where that is kept and the reader may see it. `turn`: of a call that waits for its turn, in words.
    """

    call_id: str
    lines: list[AuditLine]
    attempts: list[StoryAttempt]
    spans: list[StorySpan]
    state: str | None = None
    polls: int | None = None
    contents: CallContents | None = None
    turn: str | None = None


def waited_for_people(lines: list[AuditLine], values: Sequence[bytes | str | None]) -> bool:
    """Return whether people are to decide about a call, or have approved it; as of `story_of`."""
    record = _record(values)
    parts = _parts(_last(lines), record)
    return _waits_for(record) == "approval" or (bool(parts) and parts[0].kind == "approved")


def story_of(
    call_id: str,
    lines: list[AuditLine],
    values: Sequence[bytes | str | None],
    *,
    stored_at: float | None = None,
    requested_at: float | None = None,
) -> CallStory | None:
    """Return the story of a call by its lines and the values of `RECORD_FIELDS`; `None` if nothing is known.

    `stored_at`: when (ms) the last line, and the result with it, was written. `requested_at`: when (ms) people were asked, of a call
    that has `waited_for_people`.
    """
    record, line = _record(values), _last(lines)
    if not lines and not any(record.values()):
        return None
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
    spans = spans_of(
        _parts(line, record),
        times,
        waits_for=_waits_for(record),
        running=_is_running(record, worker),
        requested_at=requested_at,
    )
    return CallStory(
        call_id,
        lines,
        _attempts(record["log"] or ""),
        spans,
        _state(record),
        _count(line.get("polls")) or _count(record["polls"]),
    )


def _record(values: Sequence[bytes | str | None]) -> Mapping[str, str | None]:
    return dict[str, str | None](zip(RECORD_FIELDS, map(_text, values), strict=True))


def _last(lines: Sequence[AuditLine]) -> AuditLine:
    return next((each for each in reversed(lines) if _number(each.get("ts")) is not None), {})


def _parts(line: AuditLine, record: Mapping[str, str | None]) -> Sequence[TrailPart]:
    return parts_of(_said(line.get("trail")) or record["trail"])


def _waits_for(record: Mapping[str, str | None]) -> str | None:
    """Return what an open call waits for."""
    if record["state"]:
        return None
    return {"asked": "input", "approval": "approval", "parked": "accepted"}.get(record["token"] or "")


def _is_running(record: Mapping[str, str | None], worker: str | None) -> int | None:
    """The number of the attempt that runs now, of a call that a known worker has."""
    begun = _count(record["begun"])
    return begun if not record["state"] and worker is not None else None


def _state(record: Mapping[str, str | None]) -> str | None:
    """Return the state as `Ledger.state_of` does, but `None` for an unknown record."""
    if record["state"]:
        return record["state"]
    waiting = {"asked": "input_required", "approval": "waiting_approval"}.get(record["token"] or "")
    return waiting or ("running" if record["token"] else "retrying" if record["begun"] else None)


def _attempts(log: str) -> list[StoryAttempt]:
    """Parse the attempts of the ledger's log: `<number> <outcome> <ms>;` for each."""
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
