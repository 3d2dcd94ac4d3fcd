r"""Compiles a tag's regular expression: written for Python's `re`, run by RE2, which takes linear time on any text.

The syntax that both understand is accepted, and has Python's meaning, but for `\b` and `\B`, which know ASCII letters
only. Look-arounds, back references and everything else that needs backtracking is refused, as are patterns that take
too many steps.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from toolfleet_registry.linear_patterns import compiled

LONGEST_PATTERN = 1000  # characters
MOST_STEPS = 1000  # for each byte of a text: `(.{1,300})` has almost as many, `(.+)` has 20


@dataclass(frozen=True, slots=True)
class TagMatch:
    """The place of a tag, in bytes of UTF-8: its line or lines, where its argument begins; and the text of its groups."""

    start: int
    argument_start: int
    end: int
    raw_arg: str
    groups: dict[str, str]


@dataclass(frozen=True, slots=True)
class TagPattern:
    r"""`^PREFIX:\s+<arg_pattern>$`, where `^` and `$` are a line's start and end."""

    prefix: bytes
    groups: tuple[str, ...]
    steps: int
    """For each byte that is read, at most: some 6 ns for each of them."""
    _stays_in_line: bool
    _regexp: Any
    _has_groups: bool

    @classmethod
    def of(cls, prefix: str, arg_pattern: str, groups: tuple[str, ...]) -> Self:
        """Read it. Raises `ValueError` with a reason that goes on after a tool's name."""
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(
                f"its tag {prefix!r} must be 1 to 64 ASCII letters, digits, '_' and '-', and begin with a letter"
            )
        for name in groups:
            if not name or not name.isprintable() or " " in name:
                raise ValueError(f"its group {name!r} must be a name, as an argument has one")
        if len(set(groups)) != len(groups):
            raise ValueError("two of its groups have the same name")
        count = _count_groups(arg_pattern)
        if count != len(groups) and (count, len(groups)) != (0, 1):
            raise ValueError(f"its pattern has {count} groups, and {len(groups)} names for them")
        regexp = compiled(_line_of(prefix, _translated(arg_pattern)).encode(), extra="tags")
        steps = _steps(prefix, arg_pattern) or int(regexp.programsize)
        if steps > MOST_STEPS:
            raise ValueError(
                f"its pattern is too large: it takes {steps} steps for each character, of which {MOST_STEPS} may be"
            )
        return cls(f"{prefix}:".encode(), groups, steps, not _LINE_END.search(arg_pattern), regexp, bool(count))

    def reads_to(self, data: bytes, position: int) -> int:
        """Return the last position that `match` may read: the end of the argument's line, or of all for a pattern that may go on."""
        if not self._stays_in_line:
            return len(data)
        blanks = _BLANKS.match(data, position + len(self.prefix))
        end = data.find(b"\n", blanks.end() if blanks else position)
        return len(data) if end < 0 else end

    def match(self, data: bytes, position: int, end: int) -> TagMatch | None:
        """The tag of the line that begins at `position`, if there is one. `end` is that of `reads_to`."""
        match = self._regexp.match(data, position, end)
        if match is None:
            return None
        raw_arg = _text(match.group(1))
        texts = (
            [_text(match.group(number)) for number in range(2, len(self.groups) + 2)] if self._has_groups else [raw_arg]
        )
        groups = dict(zip(self.groups, texts, strict=False))
        return TagMatch(match.start(), match.start(1), match.end(), groups.get("raw_arg", raw_arg), groups)


def _count_groups(arg_pattern: str) -> int:
    """Have Python compile the pattern alone: an invalid pattern must not become valid between our own parts."""
    if len(arg_pattern) > LONGEST_PATTERN:
        raise ValueError(f"its pattern has more than {LONGEST_PATTERN} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what Python warns of it will read in another way one day
            return re.compile(arg_pattern, re.MULTILINE).groups
    except (re.error, Warning, OverflowError, RecursionError) as exc:
        raise ValueError(f"its pattern is no regular expression: {exc}") from exc


def _line_of(prefix: str, translated: str) -> str:
    return f"(?m)^{prefix}:{_SPACE}+({translated})$"


def _steps(prefix: str, arg_pattern: str) -> int | None:
    """Return the steps of the same pattern with bytes as characters; `None` if it is invalid there.

    The classes of all languages make a program ten to hundred times as large, of which each byte meets a small part.
    """
    narrow = _FAR.sub("x", _translated(arg_pattern, _ASCII))
    try:
        return int(compiled(f"(?m)^{prefix}: +({narrow})$".encode(), extra="tags", is_latin=True).programsize)
    except ValueError:
        return None


def _translated(pattern: str, classes: Mapping[str, str] | None = None) -> str:
    """Translate a pattern for RE2: Python's own syntax, and the classes, which include all letters in Python."""
    return "".join(_pieces(pattern, _CLASSES if classes is None else classes))


def _pieces(pattern: str, classes: Mapping[str, str]) -> Iterator[str]:
    position, in_class = 0, False
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:  # every character is a token
            raise AssertionError(pattern)
        text, position = token.group(), token.end()
        if text.startswith("\\"):
            yield _escape(text, classes, in_class=in_class)
        elif in_class:
            in_class = text != "]"
            yield "\\[" if text == "[" else text
        elif text in {"[", "[^"}:
            in_class = True
            yield text
            if pattern.startswith("]", position):  # the first is no end
                position += 1
                yield "\\]"
        elif text.startswith("{,"):
            yield "{0" + text[1:]
        elif text.startswith("(?"):
            raise ValueError(f"its pattern has {text!r}: no flag may be switched off in it")
        else:
            yield text


def _escape(text: str, classes: Mapping[str, str], *, in_class: bool) -> str:
    kind = text[1]
    if kind == "W" and in_class:
        raise ValueError(f"its pattern has {text} inside of brackets; write it without")
    if kind in "123456789":
        raise ValueError(f"its pattern has {text}: back references are not to be had in linear time")
    if kind in classes:
        return classes[kind] if in_class else f"[{classes[kind]}]"
    if kind == "W":
        return f"[^{classes['w']}]"
    if kind in "uUx":
        return f"\\x{{{text[2:]}}}"
    # The end of the text, a backspace, and a character that stands for itself.
    others = {"Z": "\\z"} | ({"b": "\\x08"} if in_class else {})
    return others.get(kind, text if kind.isascii() else kind)


def _text(found: bytes | None) -> str:
    return "" if found is None else found.decode()


# Python's, for text. Only for the opposite of `\w` there is no short way to write it within brackets.
_CLASSES = {
    "s": r"\s\v\x1c-\x1f\x{85}\p{Z}",
    "w": r"\p{L}\p{N}_",
    "d": r"\p{Nd}",
    "D": r"\P{Nd}",
    "S": "\x00-\x08\x0e-\x1b!-\x84\x86-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\U0010ffff",
}
_ASCII = {"s": r"\s", "w": "0-9A-Z_a-z", "d": "0-9", "D": "!-/", "S": "!-~"}
_SPACE = f"[{_CLASSES['s']}]"
_BLANKS = re.compile(  # the same in UTF-8
    rb"(?:[\s\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)*"
)
_FAR = re.compile(r"\\x\{[^}]*\}")
# What may be a line's end, or is not worth to be looked at more closely.
_LINE_END = re.compile(r"[\x00-\x1f]|\[\^|\(\?[a-zA-Z]*s|\\[^wdSbB!-/:-@\[-`{-~]", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_TOKEN = re.compile(
    r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|\[\^?|\{,\d*\}|\(\?[a-zA-Z]*-|.", re.DOTALL
)
