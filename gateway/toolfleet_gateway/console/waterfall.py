"""Draws the parts of a call's time as bars: where each begins and how wide it is, in per cent of the whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_LEAST = 0.3  # per cent: what took a microsecond can be seen
_WORDS: Final[dict[str, str]] = {
    "queued": "Queued",
    "claimed": "Claimed",
    "attempt": "Attempt",
    "module": "Its module had it",
    "lost": "Attempt, its worker was lost",
    "retry": "Waited for its retry",
    "reclaim": "Waited until another worker might have it",
    "accepted": "Its module went on with it",
    "input": "Waited for an answer",
    "approval": "Waited for an approval",
    "stored": "Result stored and announced",
}


@dataclass(frozen=True, slots=True)
class TimeBar:
    """A part of a call's time. `at` is in seconds since the epoch, `since` and `ms` in ms: from the call's beginning, and how long; `left` and `width` in per cent."""

    phase: str
    words: str
    at: float
    since: float
    ms: float
    left: float
    width: float
    goes_on: bool = False
    worker: str | None = None
    replica: str | None = None
    outcome: str | None = None


def bars_of(spans: Sequence[dict[str, Any]], *, now: float) -> list[TimeBar]:
    """The bars of the spans of a story, in their order. What goes on ends `now` (ms)."""
    if not spans:
        return []
    ends = [float(span["ends"]) if span.get("ends") is not None else max(now, float(span["begins"])) for span in spans]
    first = min(float(span["begins"]) for span in spans)
    whole = max(max(ends) - first, 0.001)
    return [_bar(span, end, first, whole) for span, end in zip(spans, ends, strict=True)]


def _bar(span: dict[str, Any], ends: float, first: float, whole: float) -> TimeBar:
    begins = float(span["begins"])
    width = min(max((ends - begins) / whole * 100, _LEAST), 100.0)
    return TimeBar(
        phase=span["phase"],
        words=_worded(span),
        at=begins / 1000,
        since=begins - first,
        ms=ends - begins,
        left=round(min((begins - first) / whole * 100, 100.0 - width), 3),
        width=round(width, 3),
        goes_on=span.get("ends") is None,
        worker=span.get("worker"),
        replica=span.get("replica"),
        outcome=span.get("outcome"),
    )


def _worded(span: dict[str, Any]) -> str:
    phase, number = str(span["phase"]), span.get("attempt")
    words = _WORDS.get(phase, phase)
    if phase in {"attempt", "lost"} and number is not None:
        return words.replace("Attempt", f"Attempt {number}", 1)
    return words
