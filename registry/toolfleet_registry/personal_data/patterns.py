r"""Finds what patterns of operators describe, such as `E-\d{6}` for employees.

They are written for RE2, and run over each text by itself. `^` and `$` are the start and the end of a line.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from toolfleet_registry.linear_patterns import compiled
from toolfleet_registry.personal_data.findings import EXTRA, KINDS, NOT_SEARCHED, FoundData
from toolfleet_registry.personal_data.searched_texts import SearchedTexts

MOST_PATTERNS = 50
LONGEST_PATTERN = 1000  # characters
MOST_STEPS = 1000  # of the compiled pattern: what it matches is no longer, in bytes


@dataclass(frozen=True, slots=True)
class OwnPattern:
    """A user-defined kind of personal data: `name` is its kind, in lower case."""

    name: str
    _regexp: Any

    @classmethod
    def of(cls, name: str, pattern: str) -> "OwnPattern":
        """Read it. Raises `ValueError`, in one sentence that names it and says what it must be."""
        if not _NAME.fullmatch(name) or name in {*KINDS, NOT_SEARCHED}:
            raise ValueError(
                f"The pattern {name!r} needs another name: 1 to 32 small letters, digits and '_', a letter first, "
                f"and none of {', '.join(KINDS)} and {NOT_SEARCHED}."
            )
        try:
            return cls(name, _checked(pattern))
        except ValueError as exc:
            raise ValueError(f"The pattern {name!r} is refused: {exc}.") from exc

    def find(self, texts: SearchedTexts) -> Iterator[FoundData]:
        """Yield each match. All texts are searched at once; those with a match in or around them then one by one."""
        data, starts = _bytes(texts.joined), texts.starts
        if len(data) > len(texts.joined):
            starts = [0, *accumulate(len(_bytes(text)) + 1 for text in texts.texts[:-1])]
        last = -1
        for match in self._regexp.finditer(data):
            if match.end() <= match.start():
                continue
            for number in range(bisect_right(starts, match.start()) - 1, len(starts)):
                if starts[number] >= match.end():
                    break
                if number > last:
                    last = number
                    yield from self._in_text(texts, number)

    def _in_text(self, texts: SearchedTexts, number: int) -> Iterator[FoundData]:
        text, start = texts.texts[number], 0
        for label in (*texts.labels.finditer(text), None):
            end = label.start() if label else len(text)
            offset = texts.starts[number] + start
            yield from (
                FoundData(self.name, offset + begin, offset + stop) for begin, stop in self._spans(text[start:end])
            )
            start = label.end() if label else end

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        data = _bytes(text)
        position = characters = 0
        for match in self._regexp.finditer(data):
            if match.end() > match.start():
                begin = characters + _length(data[position : match.start()])
                characters = begin + _length(data[match.start() : match.end()])
                position = match.end()
                yield begin, characters


def own_patterns(patterns: Mapping[str, str]) -> tuple[OwnPattern, ...]:
    """All of them. Raises `ValueError` for the first that is none, or if there are too many."""
    if len(patterns) > MOST_PATTERNS:
        raise ValueError(f"There are {len(patterns)} patterns of personal data; {MOST_PATTERNS} may be.")
    return tuple(OwnPattern.of(name, pattern) for name, pattern in patterns.items())


def _checked(pattern: str) -> Any:
    """Compile a pattern. Raises `ValueError` with a reason that continues a sentence about the pattern's name."""
    if not 0 < len(pattern) <= LONGEST_PATTERN:
        raise ValueError(f"it must have 1 to {LONGEST_PATTERN} characters")
    if not pattern.isprintable():
        raise ValueError("it has characters that cannot be printed: write them as escapes, such as \\t")
    for token in _TOKEN.finditer(pattern):
        text = token.group()
        if text in {"*", "+"} or _OPEN.fullmatch(text):
            raise ValueError(f"it has {text!r}, with which a match has no longest length: write {{0,64}} or the like")
        if text in {"\\A", "\\z", "\\C"} or _SWITCHED_OFF.fullmatch(text):
            raise ValueError(f"it has {text!r}: write ^ and $ for the ends of a line, and switch no flag off")
    regexp = compiled(b"(?m)" + pattern.encode(), extra=EXTRA)
    if int(regexp.programsize) > MOST_STEPS:
        raise ValueError(f"it is too large: it has {regexp.programsize} steps, of which {MOST_STEPS} may be")
    for probe in _PROBES:
        if any(match.start() == match.end() for match in regexp.finditer(probe)):
            raise ValueError("it matches the empty text, which is everywhere")
    return regexp


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _length(data: bytes) -> int:
    """Return the length in characters."""
    return len(data) if data.isascii() else len(data.decode("utf-8", "surrogatepass"))


_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\{\d+,\}|\(\?[a-zA-Z]*-[a-zA-Z]*[:)]|.", re.DOTALL
)
_OPEN = re.compile(r"\{\d+,\}")
_SWITCHED_OFF = re.compile(r"\(\?[a-zA-Z]*-[a-zA-Z]*[:)]")
# Where a pattern that matches nothing at all does so: at an edge of words, of lines, of the text.
_PROBES = (b"", b"a", b" ", b"a b\n0 .\n")
