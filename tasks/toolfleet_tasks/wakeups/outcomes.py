"""Describes the outcomes of a job's wake-ups, which its record keeps: who accepted, read, gave up or dropped one, and when.

Each is a line of JSON in one field, written in the step that ends a wake-up; the latest 4,000 bytes of them are kept.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from toolfleet_registry.time import fleet_clock

WakeupEnd: TypeAlias = Literal["accepted", "read", "given_up", "dropped"]
"""A core or the fleet has accepted it; a reader of the conversation has confirmed it; nobody did in its time; or an operator dropped it."""

FIELD: Final = "outcomes"
"""Of a job's record."""

_ENDS: Final[frozenset[str]] = frozenset(get_args(WakeupEnd))
_LONGEST = 200  # characters of a name, and of an id


@dataclass(frozen=True, slots=True)
class WakeupOutcome:
    """What became of one wake-up."""

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
