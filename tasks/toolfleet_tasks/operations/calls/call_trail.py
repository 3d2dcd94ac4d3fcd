"""Reads the trail of a call, which the ledger keeps where more happens to it than that it runs once and ends."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

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
