"""Searches dead letters by words and age, the latest first: some at a time, so that however many there are, few are in memory."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from toolfleet_tasks.dead_letters.entry import KINDS, DeadEntry, DeadKind
from toolfleet_tasks.dead_letters.store import DeadStore, Letter, LetterMark

MOST_SEARCHED: Final = 5_000
"""Letters that one question looks at: whoever wants those behind them asks again, with the `next` of the answer."""

_AT_ONCE = 100  # letters in memory: each may have a megabyte of arguments
_LONGEST_ID = 1_024  # characters


@dataclass(frozen=True, slots=True)
class WantedLetters:
    """A search: letters of these `kinds`, with `about` in their id or subject and `error` in their error, ignoring case, and which died before `until` (s)."""

    kinds: Collection[DeadKind] = KINDS
    about: str = ""
    error: str = ""
    until: float = math.inf

    def fits(self, entry: DeadEntry) -> bool:
        """Return whether a letter of these kinds and that age matches."""
        return self.about.lower() in f"{entry.id} {entry.subject}".lower() and self.error.lower() in entry.error.lower()


@dataclass(frozen=True, slots=True)
class FoundLetters:
    """Letters, the latest first. `next`: behind which there may be more; with fewer letters than were asked for, not all were searched."""

    entries: list[DeadEntry]
    next: str | None = None


async def search_letters(
    store: DeadStore,
    read: Callable[[Letter], DeadEntry],
    wanted: WantedLetters,
    *,
    behind: str | None = None,
    limit: int = 50,
) -> FoundLetters:
    """Return at most `limit` matching letters behind the mark `behind`; `read` parses one.

    Raises `ValueError` for an invalid mark, and `FleetUnavailable`.
    """
    mark = (math.inf, "") if behind is None else _mark_of(behind)
    mark, found, searched = min(mark, (wanted.until, "")), list[DeadEntry](), 0
    while searched < MOST_SEARCHED:
        letters = await store.behind(wanted.kinds, mark, _AT_ONCE)
        for letter in letters:
            entry = read(letter) if letter.value is not None else None  # `None`: it was dropped just now
            if entry is not None and wanted.fits(entry):
                if len(found) == limit:
                    return FoundLetters(found, _text_of(mark))
                found.append(entry)
            mark = letter.died_at, letter.id
        searched += len(letters)
        if len(letters) < _AT_ONCE:
            return FoundLetters(found)
    return FoundLetters(found, _text_of(mark))


def mark_before(moment: float) -> str:
    """The mark behind which all letters are that died before a moment (seconds since the epoch)."""
    return _text_of((moment, ""))


def _text_of(mark: LetterMark) -> str:
    return f"{mark[0]!r}~{mark[1]}"


def _mark_of(text: str) -> LetterMark:
    moment, sign, letter_id = text.partition("~")
    if not sign or len(letter_id) > _LONGEST_ID or not math.isfinite(died_at := float(moment)):
        raise ValueError("it is no mark of a letter")
    return died_at, letter_id
