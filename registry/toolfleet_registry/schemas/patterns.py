"""Bounds a schema's regular expressions: computes their size and time before they are compiled."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_STATES = 5_200
"""Of one pattern: half a megabyte, and some 5 ms to compile it. `.{1,512}` has as many, `\\p{L}{1,13}` too."""

ENDLESS = 10**9

BACKTRACKING = r"\(\?[=!<]|\\[1-9]|\\k"

_TRACKING = 20_000  # a try again takes some 10 ns, and may be made as often as the limit that it is compiled with says
_A_TEXT = 5
_A_CHARACTER, _A_CHARACTER_OF_MANY, _A_STATE = 2, 40, 10  # measured with texts that no cache holds the states of
_FEW = 6  # pieces: too few to make many states of
_CACHED = 600  # states of which the engine keeps what it needs
_OF_A_PROPERTY = 400  # such as `\p{L}`: the letters of all languages, byte by byte
_OF_ANY_CHARACTER = 10
_OF_BLANKS = 18
_IN_BOTH_CASES = 4  # times as many: three letters of ASCII have kin outside of it
_OF_OTHERS = 5  # outside of ASCII
_DIGITS = 9
_PROPERTY = r"\\[pP]"
_WIDE = r"^\[\^|\\[DW]|\[:\^"
_BLANKS = r"\\[sS]"
_OTHERS = r"\\u(?!00[0-7])|\\x[89a-fA-F{]|[^\x00-\x7f]"
_CASELESS = r"\(\?[a-zA-Z]*i"
_COUNT = r"\{(\d*),?(\d*)\}"
_AHEAD_AT_START = r"\^(?:\(\?[=!][^()]*\))*"
_PIECE = (
    r"(?s)\\[pP](?:\{[^}]*\}|.?)|\\[xu](?:\{[^}]*\}|[0-9a-fA-F]{2,4})|\\.?"
    r"|\[\^?\]?(?:\\.|[^\]\\])*\]?"
    r"|\((?:\?(?:[:=!>]|<[=!]|P?<[^>]*>|[a-zA-Z-]*[:)]))?"
    r"|\{\d*,?\d*\}|."
)

_Positions = tuple[int, ...]

_ASCII = 128
_BEYOND_ASCII: int = 2**_ASCII
_ANY = 2 * _BEYOND_ASCII - 1
_MOST_PIECES = 200
_MOST_STEPS = 5_000
_REPEAT = r"[*+?]|\{\d*,?\d*\}"
_EXACT = r"\{\d+\}"
_SETS = r"\[|&&|--|~~|\|\|"  # sets within sets, which Python reads as something else
_BEYOND = r"^\.|^\[\^|\\[wWdDsSuxU]|[^\x00-\x7f]"


@dataclass(frozen=True, slots=True)
class Patterns:
    """Units of 10 ns for each text, for each of its characters, and for the square of their number."""

    a_character: int = 0
    a_text: int = 0
    a_square: int = 0

    def __add__(self, other: "Patterns") -> "Patterns":
        return Patterns(
            self.a_character + other.a_character, self.a_text + other.a_text, self.a_square + other.a_square
        )


@dataclass(frozen=True, slots=True)
class PatternSizes:
    """The sizes of all patterns of a document: their number, all states, and the states of the largest one."""

    count: int = 0
    states: int = 0
    largest: int = 0


def patterns_of(schema: Mapping[str, Any]) -> Patterns:
    """Return the cost of one schema's own patterns."""
    return sum(map(_price, _patterns(schema)), NO_PATTERNS)


def sizes_in(document: Any) -> PatternSizes:
    """Return the sizes of every pattern anywhere in it: also unused ones are compiled once."""
    count, states, largest = 0, 0, 0
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for pattern in _patterns(node):
                size = states_of(pattern)
                count, states, largest = count + 1, states + size, max(largest, size)
            waiting.extend(child for child in node.values() if isinstance(child, dict | list))
        else:
            waiting.extend(child for child in node if isinstance(child, dict | list))
    return PatternSizes(count, min(ENDLESS, states), largest)


def states_of(pattern: str) -> int:
    """About as many as the engine makes of it, with some 100 bytes each; for what it would not take, any number."""
    return _size(pattern, _states_of_a_character)


def pieces_of(pattern: str) -> list[str]:
    """Return the pieces of a pattern: characters, classes, counts, and the starts and ends of its groups."""
    return [match.group() for match in re.finditer(_PIECE, pattern)]


def _size(pattern: str, size_of: Callable[[str], int]) -> int:
    open_groups, here, atom = list[int](), 0, 0  # `atom` is the last part of `here`, which a count repeats
    cases = 1
    for piece in pieces_of(pattern):
        if piece == ")":
            here, atom = (open_groups.pop() if open_groups else 0) + here, here
        elif piece[0] in "^$*+?|":
            here += 1
        elif piece[0] == "(":
            cases = _IN_BOTH_CASES if re.match(_CASELESS, piece) else cases
            if piece.endswith(")"):  # flags, for what follows
                here += ENDLESS if "x" in piece else 1  # blanks without a meaning: they are not written in JSON
                continue
            open_groups.append(here)
            here, atom = 2, 0
        elif (times := _times(piece)) is not None:
            here, atom = min(ENDLESS, here + atom * (times - 1)), min(ENDLESS, atom * times)
        else:
            atom = size_of(piece)
            here += atom
    return min(ENDLESS, cases * (here + sum(open_groups)))


def _patterns(schema: Mapping[str, Any]) -> list[str]:
    members = schema.get("patternProperties")
    texts = [schema.get("pattern"), *(members if isinstance(members, dict) else ())]
    return [text for text in texts if isinstance(text, str)]


def _times(piece: str) -> int | None:
    count = re.fullmatch(_COUNT, piece)
    if count is None:
        return None
    return max(1, *(int(number[:_DIGITS]) for number in count.groups() if number))


def _states_of_a_character(piece: str) -> int:
    properties = len(re.findall(_PROPERTY, piece))
    if properties:
        return _OF_A_PROPERTY * properties
    if piece == ".":
        return _OF_ANY_CHARACTER
    wide = _OF_ANY_CHARACTER * len(re.findall(_WIDE, piece)) + _OF_BLANKS * len(re.findall(_BLANKS, piece))
    return 1 + wide + _OF_OTHERS * len(re.findall(_OTHERS, piece))


def _price(pattern: str) -> Patterns:
    """Return a pattern's cost: in the worst case each of its characters is compared with each character of a text."""
    pieces = pieces_of(pattern)
    is_plain = (len(pieces) <= _FEW and "{" not in pattern) or is_deterministic(pieces)
    if is_plain:
        a_character = _A_CHARACTER if states_of(pattern) <= _CACHED else _A_CHARACTER_OF_MANY
    else:
        a_character = min(ENDLESS, _A_STATE * _size(pattern, lambda _: 1))
    # One that looks ahead or back may look at the whole rest of a text from each of its characters; at its start, once.
    at_start = re.match(_AHEAD_AT_START, pattern)
    inside = len(re.findall(BACKTRACKING, pattern[at_start.end() :] if at_start else pattern))
    tracking = _TRACKING * len(re.findall(BACKTRACKING, pattern))
    return Patterns(a_character, _A_TEXT + tracking, min(ENDLESS, a_character * inside))


NO_PATTERNS = Patterns()


def is_deterministic(pieces: Sequence[str]) -> bool:
    """Return whether a pattern, in pieces, is anchored to the start of a text, and never has two ways to continue.

    It is read as the positions of its characters, and which may follow which (Glushkov's automaton).

    For all others an engine may have to follow as many readings of a text as they have characters. In doubt, a pattern
    counts among those.
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
    """It cannot be decided, or there are two ways."""


@dataclass(slots=True)
class _Part:
    """The positions a part may begin and end with, and whether it may be empty."""

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
        """Return whether no character is at two of them."""
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
        while re.fullmatch(_REPEAT, piece := self._next()):
            self.at += 1
            if self._next() == "?":  # as few as may be: the same texts
                self.at += 1
            if piece != "?":
                self._follow(part.last, part.first, is_counted=re.fullmatch(_EXACT, piece) is not None)
            part = _Part(part.is_nullable or piece in "*?" or piece.startswith(("{0", "{,")), part.first, part.last)
        return part

    def _follow(self, last: _Positions, first: _Positions, *, is_counted: bool = False) -> None:
        """Note what may follow.

        After a counted part, the count decides whether to continue or to repeat, not the next character.
        """
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
    """Return a bit for each character of ASCII that it matches, and one for all others together."""
    if re.search(_SETS, piece[1:]):
        raise _NotCertain
    if r"\p" in piece or r"\P" in piece:
        return _ANY
    try:
        matches = re.compile(piece, re.DOTALL).fullmatch
    except re.error:
        raise _NotCertain from None
    mask = _BEYOND_ASCII if re.search(_BEYOND, piece) else 0
    return mask + sum(1 << code for code in range(_ASCII) if matches(chr(code)))
