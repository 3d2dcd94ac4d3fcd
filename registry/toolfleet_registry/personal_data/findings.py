r"""Describes what personal data was found and of which kind, words what replaces it, and joins the texts that are searched.

All values of one JSON document are searched in one pass. A newline stands between two texts, which nothing that is looked for may contain; so it does in the place of labels that hide
something already, and of what programs escape (`\n` in JSON within a text). What has the form of an ASCII digit, dash,
blank, point or sign in another script becomes that. Each character stays one character: what is found has its place.
"""

import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from hmac import HMAC
from ipaddress import ip_address
from itertools import accumulate
from operator import itemgetter
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from toolfleet_registry.linear_patterns import compiled

T = TypeVar("T")

_BEFORE = 40  # characters before a place that may say what stands there

_ZEROS = 0xFF10, 0x0660, 0x06F0, 0x0966  # full width, Arabic, Persian, Devanagari: nine digits follow each
_USUAL = (
    {chr(zero + value): str(value) for zero in _ZEROS for value in range(10)}
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212\uff0d\u30fc\ufe63", "-")
    | dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u3000", " ")
    | {chr(0xFEE0 + ord(sign)): sign for sign in ".+()/@:"}  # full width
)
_ODD = re.compile(f"[{re.escape(''.join(_USUAL))}]")
_ESCAPED = re.compile(r'\\[nrtbf"]')
# Soft hyphens, joiners, marks of direction, selectors of forms.
_NO_WIDTH = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]"
)
_HEX, _PERCENT = "[0-9A-Fa-f]", "%(?:25)*"  # `%2540` is `%40`, coded once more
# One character each, so that what is found keeps its edges: as URLs have it, as JSON and programs have it, as HTML has it.
_CODED = re.compile(
    rf"{_PERCENT}(?:[0-7]{_HEX}|[C-Fc-f]{_HEX}(?:{_PERCENT}[89ABab]{_HEX}){{1,3}})|\\+(?:u{_HEX}{{4}}|x{_HEX}{{2}}|/)"
    rf"|&(?:amp;)*(?:#[0-9]{{1,7}}|#[xX]{_HEX}{{1,6}}|[A-Za-z]{{2,31}});|{_NO_WIDTH.pattern}"
)
_BEFORE_BYTE = re.compile(rf"{_PERCENT}(?={_HEX}{{2}})")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")

Kind: TypeAlias = Literal["iban", "credit_card", "mac_address", "ip", "email", "url", "phone"]
"""The kinds that are known without a pattern."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Sorted: what has a checksum first, what is a matter of habits last. Of two at one place the first counts."""

NOT_SEARCHED = "not_searched"
"""Stands for a kind where nothing was looked for: too deep, or not JSON."""

_RANKS: dict[str, int] = {kind: rank for rank, kind in enumerate(KINDS)}

Strategy: TypeAlias = Literal["redact", "mask", "hash", "block"]
"""What happens to personal data.

- `redact`: `[EMAIL]`, the kind in capitals.
- `mask`: of a phone's, a card's or an account's number the last four letters and digits, `****2671`; of an email its first
  character and the end of its domain, `a***@***.com`. Of other kinds nothing is harmless: as `redact`.
- `hash`: `[email:3f09c1d2a4b5c6d7]`, the beginning of an HMAC-SHA256 of the value under the operator's key. The same value has
  the same digest, however it is spelt: capitals in emails, blanks and dashes in numbers, `+49 30 …` for `030 …`, zeros in IPv6.
- `block`: nothing goes on; an error names place and kind.
"""

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

SHORTEST_KEY = 16  # bytes

HideValue: TypeAlias = Callable[[str, str], str]
"""The text that stands in the place of a value: from its kind and what it was. Where several overlap, it is `label` instead."""

_ONLY_CHARACTERS = re.compile(r"[^0-9A-Za-z]")

EXTRA = "pii"
"""The extra of the distribution that has what detectors need."""


class SearchedTexts:
    """Some texts as one: `plain`, and `data` with one byte for each of its characters, where `?` may be any letter.

    `names`: of the members that have the texts as values, or empty. `labels` is what hides something already.
    """

    def __init__(self, texts: Sequence[str], names: Sequence[str], labels: re.Pattern[str]) -> None:
        joined = "\n".join(texts)
        plain = in_usual_characters(joined)
        if "\\" in plain:
            plain = _ESCAPED.sub("\n\n", plain)
        if "[" in plain:
            plain = labels.sub(_blank, plain)
        self.texts, self.joined, self.labels = texts, joined, labels
        self.plain = plain
        self.data = plain.encode("latin-1", "replace")
        self.starts = [0, *accumulate(len(text) + 1 for text in texts[:-1])] if texts else []
        self._names = names
        self._made = dict[str, Any]()

    def once(self, what: str, make: Callable[["SearchedTexts"], T]) -> T:
        """Return a value that several detectors need of the same texts, computed by the first of them."""
        if what not in self._made:
            self._made[what] = make(self)
        made: T = self._made[what]
        return made

    @property
    def digits(self) -> int:
        """The number of ASCII digits: with few, nothing can be a number of any kind."""
        return self.once("digits", _digits_in)

    def coded(self) -> "dict[int, DecodedText]":
        """Return the texts that have something coded, decoded, by their numbers."""
        joined = self.joined
        if joined.isascii() and not any(sign in joined for sign in "%\\&"):  # nearly always
            return {}
        numbers = dict.fromkeys(self.text_at(match.start()) for match in _CODED.finditer(joined))
        return {number: DecodedText(self.texts[number]) for number in numbers}

    def text_at(self, position: int) -> int:
        """Return the number of the text that a character is in."""
        return bisect_right(self.starts, position) - 1

    def before(self, position: int) -> str:
        """Return the text before this place in the same line, at most 40 characters; or the name of the member."""
        number = self.text_at(position)
        start = self.starts[number]
        if position - _BEFORE > start:
            return self.plain[position - _BEFORE : position].rpartition("\n")[2]
        name = self._names[number]
        written = self.plain[start:position].rpartition("\n")[2]
        return f"{_words(name)}: {written}" if name else written


class DecodedText:
    r"""A text as its reader gets it: `%40`, `\u0040` and `&#64;` are `@`, and characters that have no width are left out.

    So are codes of codes, such as `%2540`.
    """

    def __init__(self, text: str) -> None:
        pieces, length, position = list[str](), 0, 0
        self._codes = [(0, 0, 0, 0)]  # each one's start and end, decoded and before
        for match in _CODED.finditer(text):
            meaning, length = _meaning(match.group()), length + match.start() - position
            pieces += (text[position : match.start()], meaning)
            self._codes.append((length, length + len(meaning), *match.span()))
            length, position = length + len(meaning), match.end()
        self.text = "".join([*pieces, text[position:]])

    def original(self, start: int, end: int) -> tuple[int, int]:
        """Return where `text[start:end]`, which is not empty, stands in the text before it was decoded."""
        return self._origin(start)[0], self._origin(end - 1)[1]

    def _origin(self, position: int) -> tuple[int, int]:
        """Return start and end of what a character was before."""
        _, end, old_start, old_end = self._codes[bisect_right(self._codes, position, key=itemgetter(0)) - 1]
        at = old_end + position - end
        return (old_start, old_end) if position < end else (at, at + 1)


def _meaning(code: str) -> str:
    meaning = ""
    if code[0] == "%":
        meaning = bytes.fromhex(_BEFORE_BYTE.sub("", code)).decode("utf-8", "replace")
    elif code[0] == "\\":
        meaning = "/" if code[-1] == "/" else chr(int(code.lstrip("\\")[1:], 16))
    elif code[0] == "&":
        meaning = html.unescape(code.replace("amp;", ""))
    return _NO_WIDTH.sub("", meaning)


def _digits_in(texts: SearchedTexts) -> int:
    return len(texts.data) - len(texts.data.translate(None, b"0123456789"))


def in_usual_characters(text: str) -> str:
    """Return a text with ASCII digits, dashes, blanks, points and signs for those of other scripts; as long as it was."""
    return text if text.isascii() or not _ODD.search(text) else _ODD.sub(_usual, text)


def _words(name: str) -> str:
    """`homePhone` and `home_phone` as words."""
    return _HUMP.sub(" ", name[-_BEFORE:]).replace("_", " ")


def _usual(match: re.Match[str]) -> str:
    return _USUAL[match.group()]


def _blank(match: re.Match[str]) -> str:
    return "\n" * len(match.group())


@dataclass(frozen=True, slots=True)
class FoundData:
    """One place in a text: `text[start:end]`, in characters. `kind` is one of `KINDS`, or the name of an own pattern.

    `is_one` is false where several overlap and none covers all of it: then nothing of it is harmless. `value` is what was found, if
    it is written otherwise there, as `%40` for `@`; `None`: it is what stands there.
    """

    kind: str
    start: int
    end: int
    is_one: bool = True
    value: str | None = None

    def moved(self, by: int) -> "FoundData":
        """Return the same `by` characters further on."""
        return replace(self, start=self.start + by, end=self.end + by)


def settled(found: Sequence[FoundData]) -> list[FoundData]:
    """Return the findings sorted and disjoint: overlapping ones become one, which covers all of them.

    Its kind is that of the longest; of equally long ones an own pattern's, then the first of `KINDS`. So an email
    inside of a URL is part of the URL, and nothing that any detector has found stays visible next to a label.
    """
    kept = list[FoundData]()
    if not found:  # nearly always
        return kept
    longest = FoundData("", 0, 0)
    for each in sorted(found, key=_by_place):
        if kept and each.start < kept[-1].end:
            if each.end - each.start > longest.end - longest.start:
                longest = each
            start, end = kept[-1].start, max(kept[-1].end, each.end)
            is_one = (longest.start, longest.end) == (start, end)
            kept[-1] = FoundData(longest.kind, start, end, is_one, longest.value)
        else:
            longest = each
            kept.append(each)
    return kept


def _by_place(found: FoundData) -> tuple[int, int, int]:
    return found.start, -found.end, _RANKS.get(found.kind, -1)


def label(kind: str) -> str:
    """Return the label that replaces a finding of this kind."""
    return f"[{kind.upper()}]"


def labels_of(kinds: Iterable[str]) -> re.Pattern[str]:
    """Compile a pattern for labels that hide something already, in which nothing is searched."""
    names = "|".join(sorted(kinds))
    return re.compile(rf"\[(?:{names.upper()}|SAME_[0-9]+|(?:{names}):[0-9a-f]{{16}})\]")


def hiding(strategy: Strategy, key: bytes | None, e164: Callable[[str], str | None]) -> HideValue:
    """Return the function that hides a value by this strategy.

    `e164` normalizes a phone number. Raises `ValueError` without a key to hash with.
    """
    if strategy == "hash":
        if key is None or len(key) < SHORTEST_KEY:
            raise ValueError(f"The strategy 'hash' needs a key of at least {SHORTEST_KEY} bytes.")
        return lambda kind, value: digest(key, kind, _one_spelling(kind, value, e164))
    return _masked if strategy == "mask" else lambda kind, _: label(kind)


def digest(key: bytes, kind: str, value: str) -> str:
    """Return what stands for a value: the same for the same value under the same key."""
    message = f"{kind}\0{value}".encode("utf-8", "surrogatepass")
    return f"[{kind}:{HMAC(key, message, sha256).hexdigest()[:16]}]"


def _masked(kind: str, value: str) -> str:
    if kind in {"phone", "credit_card", "iban"}:
        return f"****{_ONLY_CHARACTERS.sub('', in_usual_characters(value))[-4:]}"
    if kind == "email":
        return f"{value[0]}***@***.{value.rpartition('.')[2]}"
    return label(kind)


def _one_spelling(kind: str, value: str, e164: Callable[[str], str | None]) -> str:
    usual = in_usual_characters(value)
    if kind == "phone":
        return e164(usual) or _ONLY_CHARACTERS.sub("", usual)
    if kind in {"credit_card", "iban", "mac_address"}:
        return _ONLY_CHARACTERS.sub("", usual).upper()
    return ip_address(value).compressed if kind == "ip" else value.lower() if kind == "email" else value


def scanner(pattern: str) -> Any:
    r"""Compile an RE2 in which `\b` knows ASCII words. Raises `ValueError` if RE2 is not installed."""
    return compiled(pattern.encode("latin-1"), extra=EXTRA, is_latin=True)
