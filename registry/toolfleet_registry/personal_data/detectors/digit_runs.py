"""Finds runs of at least seven digits, and the parts of each, at which a card's or a phone's number may begin and end.

A run goes on over points, dashes, slashes, brackets and up to three of them, and over one `_`; a part begins and ends at a blank. Dates are
no parts. What touches a run may say that it is none: letters, a decimal point, a sign of a currency.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from toolfleet_registry.personal_data.detectors.call_words import CallWords
from toolfleet_registry.personal_data.detectors.scan import scanner
from toolfleet_registry.personal_data.searched_texts import SearchedTexts

MOST_PARTS = 7  # that one number is written in


@dataclass(frozen=True, slots=True)
class DigitRun:
    """The start and end of the parts of a run. `None` is a date or several blanks: no number extends over it.

    Of a part that belongs to something else, such as a word, only its edge is there: no number starts or ends in it.
    """

    start: int
    end: int
    parts: tuple[tuple[int, int] | None, ...]
    is_bare: bool = False
    """Digits, and nothing else."""

    def windows(self, first: int) -> Iterator[tuple[int, int, int]]:
        """Yield windows of one part to seven, from the part `first`: start, end, and the number of the next part; the longest first."""
        ends = list[tuple[int, int]]()
        for number in range(first, min(first + MOST_PARTS, len(self.parts))):
            part = self.parts[number]
            if part is None:
                break
            ends.append((part[1], number + 1))
        begin = self.parts[first]
        if begin is not None:
            for end, following in reversed(ends):
                yield begin[0], end, following

    def begins_at(self, first: int) -> bool:
        """Return whether no other part is directly before this one."""
        return first == 0 or self.parts[first - 1] is None

    def is_apart(self, first: int, following: int) -> bool:
        """Return whether no other part is directly next to these."""
        return self.begins_at(first) and (following == len(self.parts) or self.parts[following] is None)


class DigitRunScanner:
    """Finds the runs of some texts.

    Digits alone without a leading 0 may be the number of anything. Without a word that announces a phone number they
    are skipped at once, except for those with as many digits as a card or a Chinese mobile has: in ordinary data that
    is nearly all.
    """

    def __init__(self) -> None:
        self._all = scanner(_RUN)
        self._some = scanner(_MEANT)
        self._call_words = CallWords()

    def runs(self, texts: SearchedTexts) -> list[DigitRun]:
        """Return each run that may contain a number."""
        return texts.once("digit runs", lambda texts: list(self._runs(texts)))

    def _runs(self, texts: SearchedTexts) -> Iterator[DigitRun]:
        if texts.digits < _FEWEST_DIGITS:
            return
        plain = texts.plain
        scanned = self._all if self._call_words.are_in(texts) else self._some
        for match in scanned.finditer(texts.data):
            start, end = match.span()
            end = plain.rfind("x", start, end) if plain.find("x", start, end) > 0 else end  # an extension
            begin = start + plain.startswith("(", start)
            if plain[begin:end].isdigit():  # most are, and most of these are numbers of orders, records, milliseconds
                if _is_number(plain, begin, end):
                    yield DigitRun(begin, end, ((begin, end),), is_bare=True)
                continue
            parts = tuple(
                None if _NO_PART.fullmatch(plain, part.start(), part.end()) else part.span()
                for part in _PART.finditer(plain, start, end)
            )
            parts = _trimmed(plain, parts)
            if any(parts):
                yield DigitRun(start, end, parts)


def _is_number(plain: str, start: int, end: int) -> bool:
    """Return whether digits alone may be a number: they are not too many, not a date, and not part of something else."""
    if end - start > _MOST_DIGITS or (end - start == 8 and _NO_PART.fullmatch(plain, start, end)):  # noqa: PLR2004 - yyyymmdd
        return False
    if plain[start - 1 : start] in _PLAIN_EDGES and plain[end : end + 1] in _PLAIN_EDGES:
        return True  # nearly all
    return not (_NO_NUMBER_AFTER.search(plain[max(start - 6, 0) : start]) or _NO_NUMBER_BEFORE.match(plain, end))


def _trimmed(plain: str, parts: tuple[tuple[int, int] | None, ...]) -> tuple[tuple[int, int] | None, ...]:
    """Empty the first part if the text before it says that it is no number, and the last part by the text after it."""
    first, last = parts[0], parts[-1]
    if first is not None and _NO_NUMBER_AFTER.search(plain[max(first[0] - 6, 0) : first[0]]):
        parts = ((first[1], first[1]), *parts[1:])
    if last is not None and last[0] < last[1] and _NO_NUMBER_BEFORE.match(plain, last[1]):
        parts = (*parts[:-1], (last[0], last[0]))
    return parts


_FEWEST_DIGITS, _MOST_DIGITS = 7, 19
_PLAIN_EDGES = frozenset(("", "\n", '"', "(", ")", ",", ";"))
_EDGE = r"(?:\b|x[0-9]{1,6}\b)"  # `x12` is an extension in America
_MARKS = r"(?:[ .\-/()]{1,3}|_)"
_GAP = rf"{_MARKS}?"
_RUN = rf"(?:\+ ?\(?|\(|\b)[0-9](?:{_GAP}[0-9]){{6,}}{_EDGE}"
_GROUPS = "|".join(  # seven digits or more, the first of them in a group of so many
    rf"[0-9]{{{count}}}{_MARKS}[0-9](?:{_GAP}[0-9]){{{6 - count},}}" for count in range(1, 7)
)
_MEANT = (
    rf"\+ ?\(?[0-9](?:{_GAP}[0-9]){{6,}}{_EDGE}|(?:\(|\b)(?:{_GROUPS}|[0-9]{{7,}}{_MARKS}[0-9](?:{_GAP}[0-9])*"
    rf"|0[0-9]{{6,}}|[0-9]{{11}}|[2-6][0-9]{{11,18}}){_EDGE}"
)
_PART = re.compile(r"(?:\+ ?)?[^ ]+|  +")
# Several blanks, or a date.
_NO_PART = re.compile(
    r" +|\d{4}([-/.])\d{1,2}\1\d{1,4}|\d{1,2}([-/.])\d{1,2}\2(?:19|20)\d\d(?:-\d+)?|(?:19|20)\d\d-\d{5,}|(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])"
)
_NO_NUMBER_AFTER = re.compile(r"(?:[0-9A-Za-z_][-_./+]|[0-9]:|[#$€£¥.]|[#$€£¥] |[A-Za-z][0-9]{1,4} )\Z")
_NO_NUMBER_BEFORE = re.compile(r"(?!x[0-9]{1,6}\b)(?:[._-]?[0-9A-Za-z]|[@%°]| ?(?:[$€£¥]|zł\b|kB\b|px\b)|:[0-9])")
