"""Searches wake-ups that wait by kind, words and age, those that are tried next first; some at a time, so that few are in memory."""

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from toolfleet_tasks.dead_letters.kept_wakes import (
    FIRST,
    WAITING_KINDS,
    DueMark,
    KeptWake,
    KeptWakes,
    WaitingKind,
    subject_of,
)

MOST_WAITING_SEARCHED: Final = 5_000
"""Wake-ups that one question looks at: whoever wants those behind them asks again, with the `next` of the answer."""

_AT_ONCE = 100  # in memory: each may have some hundred kilobytes
_LONGEST_ID = 1_024  # characters


@dataclass(frozen=True, slots=True)
class WantedWakes:
    """A search: wake-ups of this `kind`, with `about` in their id or subject and `error` in their last error, ignoring case, due first before `until` (s)."""

    kind: WaitingKind | None = None
    about: str = ""
    error: str = ""
    until: float = math.inf

    def fits(self, wake: KeptWake) -> bool:
        """Return whether it matches."""
        is_kind = self.kind is None or wake.kind == self.kind
        about = f"{wake.wake_id} {subject_of(wake)}".lower()
        return (
            is_kind
            and wake.first_at < self.until
            and self.about.lower() in about
            and self.error.lower() in wake.error.lower()
        )

    @property
    def words(self) -> dict[str, str | int]:
        """The search's part of an audit line."""
        said = {"wakeup_kind": self.kind or "", "about": self.about, "error": self.error}
        return {name: value for name, value in said.items() if value}


@dataclass(frozen=True, slots=True)
class FoundWakes:
    """The wake-ups found, the next due first.

    `next`: behind which there may be more; with fewer than were asked for, not all were searched.
    """

    wakes: list[KeptWake]
    next: str | None = None


async def search_waiting(
    kept: KeptWakes, wanted: WantedWakes, *, behind: str | None = None, limit: int = 50
) -> FoundWakes:
    """Return at most `limit` matching wake-ups behind the mark `behind`, first due before the mark's `until`.

    Raises `ValueError` for an invalid mark, and `FleetUnavailable`.
    """
    until, mark = (wanted.until, FIRST) if behind is None else _mark_of(behind)
    wanted = WantedWakes(wanted.kind, wanted.about, wanted.error, min(until, wanted.until))
    found, searched = list[KeptWake](), 0
    async with aclosing(_each_behind(kept, wanted, mark)) as wakes:
        async for due, wake in wakes:
            if searched == MOST_WAITING_SEARCHED or len(found) == limit:
                return FoundWakes(found, _text_of(wanted.until, mark))
            searched += 1
            if wake is not None and wanted.fits(wake):
                found.append(wake)
            mark = due
    return FoundWakes(found)


def is_mark(text: str) -> bool:
    """Return whether a text is the mark of a wake-up."""
    try:
        _mark_of(text)
    except ValueError:
        return False
    return True


async def _each_behind(
    kept: KeptWakes, wanted: WantedWakes, mark: DueMark
) -> AsyncGenerator[tuple[DueMark, KeptWake | None]]:
    """`None` for one that does not wait any more."""
    kinds = WAITING_KINDS if wanted.kind is None else (wanted.kind,)
    while True:
        due = await kept.due_behind(mark, _AT_ONCE, kinds)
        for one, wake in zip(due, await kept.read_waiting(due), strict=True):
            yield one, wake
        if len(due) < _AT_ONCE:
            return
        mark = due[-1]


def _text_of(until: float, mark: DueMark) -> str:
    return f"{until!r}~{mark[0]!r}~{mark[1]}"


def _mark_of(text: str) -> tuple[float, DueMark]:
    until, _, rest = text.partition("~")
    due_ms, sign, wake_id = rest.partition("~")
    moment, due = float(until), float(due_ms)
    if not sign or len(wake_id) > _LONGEST_ID or math.isnan(moment) or math.isnan(due):
        raise ValueError("it is no mark of a wake-up")
    return moment, (due, wake_id)
