"""Tells patterns of which each next character has one meaning only: to match those takes no longer, however texts are made.

Of all others an engine may have to follow as many readings of a text as they have characters. Where it is not certain, a
pattern counts among those.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_Positions = tuple[int, ...]


def is_deterministic(pieces: Sequence[str]) -> bool:
    """Whether a pattern, in pieces, is bound to the start of a text, and never has two ways to go on from there.

    It is read as the positions of its characters, and which may follow which (Glushkov's automaton).
    """
    if len(pieces) > _MOST_PIECES or not pieces or pieces[0] != "^":
        return False
    reader = _Reader(pieces[1:])
    try:
        whole = reader.alternatives(is_outermost=True)
        return reader.at == len(reader.pieces) and reader.is_distinct(whole.first)
    except _NotCertain:
        return False


class _NotCertain(Exception):
    """It cannot be told, or there are two ways."""


@dataclass(slots=True)
class _Part:
    """Which positions it may begin and end with, and whether it may be nothing at all."""

    is_nullable: bool = True
    first: _Positions = ()
    last: _Positions = ()


@dataclass(slots=True)
class _Reader:
    pieces: Sequence[str]
    at: int = 0
    _masks: list[int] = field(default_factory=list[int])
    _followed: list[int] = field(default_factory=list[int])
    _steps: int = 0

    def alternatives(self, *, is_outermost: bool = False) -> _Part:
        part = self._sequence()
        while self._next() == "|":
            if is_outermost:  # only the first of them begins with the start of a text
                raise _NotCertain
            self.at += 1
            other = self._sequence()
            part = _Part(part.is_nullable or other.is_nullable, part.first + other.first, part.last + other.last)
        return part

    def is_distinct(self, positions: _Positions) -> bool:
        """Whether no character is at two of them."""
        seen = 0
        for position in positions:
            if seen & self._masks[position]:
                return False
            seen |= self._masks[position]
        return True

    def _sequence(self) -> _Part:
        whole = _Part()
        while (piece := self._next()) not in {"", "|", ")"}:
            self.at += 1
            part = self._repeated(self._part(piece))
            self._follow(whole.last, part.first)
            whole = _Part(
                whole.is_nullable and part.is_nullable,
                whole.first + part.first if whole.is_nullable else whole.first,
                whole.last + part.last if part.is_nullable else part.last,
            )
        return whole

    def _part(self, piece: str) -> _Part:
        if piece in {"^", "$", r"\b", r"\B"}:  # without them there is more to match, never less
            return _Part()
        if piece[0] != "(":
            self._masks.append(_mask(piece))
            self._followed.append(0)
            position = (len(self._masks) - 1,)
            return _Part(is_nullable=False, first=position, last=position)
        if piece not in {"(", "(?:"}:
            raise _NotCertain
        part = self.alternatives()
        if self._next() != ")":
            raise _NotCertain
        self.at += 1
        return part

    def _repeated(self, part: _Part) -> _Part:
        while _REPEAT.fullmatch(piece := self._next()):
            self.at += 1
            if self._next() == "?":  # as few as may be: the same texts
                self.at += 1
            if piece != "?":
                self._follow(part.last, part.first, is_counted=_EXACT.fullmatch(piece) is not None)
            part = _Part(part.is_nullable or piece in "*?" or piece.startswith(("{0", "{,")), part.first, part.last)
        return part

    def _follow(self, last: _Positions, first: _Positions, *, is_counted: bool = False) -> None:
        """Where it is counted, the number says whether to go on or to begin anew, whatever comes next."""
        self._steps += len(last) * len(first)
        if self._steps > _MOST_STEPS:
            raise _NotCertain
        for before in last:
            for after in first:
                if self._followed[before] & self._masks[after]:
                    raise _NotCertain
                self._followed[before] |= 0 if is_counted else self._masks[after]

    def _next(self) -> str:
        return self.pieces[self.at] if self.at < len(self.pieces) else ""


def _mask(piece: str) -> int:
    """A bit for each character of ASCII that it matches, and one for all others together."""
    if _SETS.search(piece, 1):
        raise _NotCertain
    if r"\p" in piece or r"\P" in piece:
        return _ANY
    try:
        matches = re.compile(piece, re.DOTALL).fullmatch
    except re.error:
        raise _NotCertain from None
    mask = _BEYOND_ASCII if _BEYOND.search(piece) else 0
    return mask + sum(1 << code for code in range(_ASCII) if matches(chr(code)))


_ASCII = 128
_BEYOND_ASCII: int = 2**_ASCII
_ANY = 2 * _BEYOND_ASCII - 1
_MOST_PIECES = 200
_MOST_STEPS = 5_000
_REPEAT = re.compile(r"[*+?]|\{\d*,?\d*\}")
_EXACT = re.compile(r"\{\d+\}")
_SETS = re.compile(r"\[|&&|--|~~|\|\|")  # sets within sets, which Python reads as something else
_BEYOND = re.compile(r"^\.|^\[\^|\\[wWdDsSuxU]|[^\x00-\x7f]")
