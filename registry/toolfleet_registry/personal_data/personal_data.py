"""Finds personal data in texts and in JSON values, at any depth, also by patterns of operators, and hides it or refuses the value.

Patterns of operators are written for RE2, and run over each text by itself. `^` and `$` are the start and the end of a line.

Each text is searched by itself. In a stream, such as messages of progress or lines of a log, each message is one text:
a value that is split between two messages is not found. A sender of streamed text that belongs together must pass it
whole.

It takes time in proportion to the length of the texts, not to their content, and never makes network requests.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from json import JSONEncoder
from typing import Any

from toolfleet_registry.errors import PersonalDataBlocked
from toolfleet_registry.linear_patterns import compiled
from toolfleet_registry.personal_data.addresses import (
    EmailDetector,
    IpDetector,
    MacAddressDetector,
    UrlDetector,
)
from toolfleet_registry.personal_data.findings import (
    EXTRA,
    KINDS,
    NOT_SEARCHED,
    STRATEGIES,
    FoundData,
    SearchedTexts,
    Strategy,
    hiding,
    label,
    labels_of,
    scanner,
    settled,
)
from toolfleet_registry.personal_data.numbers import CardDetector, IbanDetector, NumberPlans, PhoneDetector
from toolfleet_registry.system.offload import aside

MOST_PATTERNS = 50
LONGEST_PATTERN = 1000  # characters
MOST_STEPS = 1000  # of the compiled pattern: what it matches is no longer, in bytes

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\{\d+,\}|\(\?[a-zA-Z]*-[a-zA-Z]*[:)]|.", re.DOTALL
)
_OPEN = re.compile(r"\{\d+,\}")
_SWITCHED_OFF = re.compile(r"\(\?[a-zA-Z]*-[a-zA-Z]*[:)]")
# Where a pattern that matches nothing at all does so: at an edge of words, of lines, of the text.
_PROBES = (b"", b"a", b" ", b"a b\n0 .\n")

DEEPEST = 100
"""Levels of a value, as bodies of HTTP may have; what lies deeper is not searched, but hidden as a whole."""

_Find = Callable[[SearchedTexts], Iterable[FoundData]]

_SMALLEST = 1_000_000  # numbers with fewer digits are no phone's
_LONGEST_NUMBER_BITS = 4000 * 3  # bits: Python writes no longer number as a text

DEFAULT_REGIONS = ("US", "GB", "DE", "FR", "ES", "PL", "RU", "JP", "CN")
"""Where phone numbers are looked for as one writes them at home."""

_LARGE = 32 * 1024
"""Bytes of a JSON value from which on it is searched in a thread: some 3 ms."""

_MOST_ROUNDS = 4
_WITHOUT_CODES = frozenset(KINDS) - {"url"}

_MOST_BRACKETS = 100
_PARTS = (
    r"@",  # of an email
    r"://|(?i:www\.)",  # of a URL
    r"[A-Za-z]{2}[0-9]{2}",  # of an IBAN: country and check digits
    r"[0-9](?:[ .\-/()_]{0,3}[0-9]){6}",  # of a card's or a phone's number
    r"[0-9]\.[0-9]{1,3}\.[0-9]",  # of an address of IPv4
    r"::|[0-9A-Fa-f]:[0-9A-Fa-f]{1,4}:",  # of one of IPv6, or of a network card
    r"[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2}-|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.",  # of a network card
    r"[0-9]e[+\-]?[0-9]",  # a number of many digits
    r"%[0-9A-Fa-f]{2}|\\\\[ux/]|&[#A-Za-z]",  # what `DecodedText` decodes; JSON doubles a backslash
)


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
        for hidden in (*texts.labels.finditer(text), None):
            end = hidden.start() if hidden else len(text)
            offset = texts.starts[number] + start
            yield from (
                FoundData(self.name, offset + begin, offset + stop) for begin, stop in self._spans(text[start:end])
            )
            start = hidden.end() if hidden else end

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
    """Return all of them. Raises `ValueError` for the first that is none, or if there are too many."""
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


class JsonLeaves:
    """All texts of a value in their order: `texts`, and in `names` the nearest member's name that each is a value of.

    A member's name comes before its value, under no name. Numbers are texts as JSON has them; those with less than seven
    digits, and fractions, are left out unless `all_numbers`. `unsearched`: numbers of those that are too deep, or no JSON.
    """

    def __init__(self, value: Any, *, all_numbers: bool) -> None:
        self.texts = list[str]()
        self.names = list[str]()
        self.unsearched = list[int]()
        self._all_numbers = all_numbers
        self._value = value
        self._collect(value, "", 0)

    def _collect(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, str):
            self.texts.append(value)
            self.names.append(name)
        elif isinstance(value, dict) and depth < DEEPEST:
            for key, member in value.items():
                text = key if isinstance(key, str) else str(key)
                self.texts.append(text)
                self.names.append("")
                self._collect(member, text, depth + 1)
        elif isinstance(value, (list, tuple)) and depth < DEEPEST:
            for item in value:
                self._collect(item, name, depth + 1)
        elif value is not None and not isinstance(value, bool):
            self._collect_other(value, name)

    def _add(self, text: str, name: str) -> None:
        self.texts.append(text)
        self.names.append(name)

    def _collect_other(self, value: Any, name: str) -> None:
        text = _number(value)
        if text is None:
            self.unsearched.append(len(self.texts))
            self._add("", "")
        elif self._all_numbers or _is_long(value):
            self._add(text, name)

    def rebuilt(self, texts: Mapping[int, str]) -> Any:
        """Return the value with these texts in the place of those with their numbers; what holds none of them is in it as it was."""
        return _Rebuilding(texts, all_numbers=self._all_numbers).rebuilt(self._value, 0)

    def pointer(self, number: int) -> tuple[str, bool]:
        """Return the JSON pointer (RFC 6901) of a text, and whether the text is a member's name there, which the pointer leaves out."""
        search = _Rebuilding({}, all_numbers=self._all_numbers, wanted=number)
        search.rebuilt(self._value, 0)
        steps, is_name = search.place
        return "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in steps), is_name


def _number(value: Any) -> str | None:
    """Return a number as a text; `None` for any other value, or one too long."""
    if isinstance(value, int):
        return str(value) if value.bit_length() <= _LONGEST_NUMBER_BITS else None
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 10**20 else repr(value)
    return None


def _is_long(value: float) -> bool:
    return abs(value) >= _SMALLEST and (isinstance(value, int) or value.is_integer())


class _Rebuilding:
    """Walks as `JsonLeaves` does, in step with its numbers."""

    def __init__(self, texts: Mapping[int, str], *, all_numbers: bool, wanted: int = -1) -> None:
        self._texts, self._all_numbers, self._wanted = texts, all_numbers, wanted
        self._next = 0
        self._steps = list[str]()
        self.place: tuple[tuple[str, ...], bool] = ((), False)

    def rebuilt(self, value: Any, depth: int) -> Any:
        """Return the value, or a copy if something in it is replaced."""
        if isinstance(value, str):
            return self._leaf(value)
        if isinstance(value, dict) and depth < DEEPEST:
            return self._members(value, depth)
        if isinstance(value, list | tuple) and depth < DEEPEST:
            items = list[Any]()
            for number, item in enumerate(value):
                self._steps.append(str(number))
                items.append(self.rebuilt(item, depth + 1))
                self._steps.pop()
            is_same = all(new is old for new, old in zip(items, value, strict=True))
            return value if is_same else items if isinstance(value, list) else tuple(items)
        if value is None or isinstance(value, bool):
            return value
        is_leaf = self._all_numbers or not isinstance(value, int | float) or _is_long(value) or _number(value) is None
        return self._leaf(value) if is_leaf else value

    def _members(self, members: dict[Any, Any], depth: int) -> dict[Any, Any]:
        names, values = list[Any](), list[Any]()
        for key, member in members.items():
            names.append(self._leaf(key, is_name=True))
            self._steps.append(key if isinstance(key, str) else str(key))
            values.append(self.rebuilt(member, depth + 1))
            self._steps.pop()
        if all(new is old for new, old in zip(names, members, strict=True)):
            if all(new is old for new, old in zip(values, members.values(), strict=True)):
                return members
            return dict(zip(names, values, strict=True))
        return dict(zip(_apart(names, list(members)), values, strict=True))

    def _leaf(self, value: Any, *, is_name: bool = False) -> Any:
        number = self._next
        self._next += 1
        if number == self._wanted:
            self.place = (tuple(self._steps), is_name)
        return self._texts.get(number, value)


def _apart(names: list[Any], before: list[Any]) -> list[Any]:
    """Make names unique: `[EMAIL]`, `[EMAIL][SAME_2]`. Unchanged names stay as they are."""
    taken = {new for new, old in zip(names, before, strict=True) if new is old}
    counts = dict[Any, int]()
    apart = list[Any]()
    for new, old in zip(names, before, strict=True):
        name = new
        while new is not old and name in taken:
            counts[new] = counts.get(new, 1) + 1
            name = f"{new}[SAME_{counts[new]}]"
        taken.add(name)
        apart.append(name)
    return apart


@dataclass(frozen=True, slots=True)
class HiddenValue:
    """A JSON value without personal data, the very same if it had none; and how much was hidden, by kind."""

    value: Any
    counts: Mapping[str, int]


class PersonalData:
    """The kinds of personal data to find, and the strategy to hide them.

    `types`: of `KINDS`. `patterns`: own kinds by name, for RE2. `strategy`: see `findings.Strategy`. `key`: for
    `hash`, at least 16 bytes. `regions`: countries: their phone numbers are found without `+`; each costs time and some more false
    alarms.

    Raises `ValueError`, in one sentence, for invalid or unavailable options.
    """

    def __init__(
        self,
        types: Iterable[str] = KINDS,
        patterns: Mapping[str, str] | None = None,
        strategy: Strategy = "redact",
        *,
        key: bytes | None = None,
        regions: Sequence[str] = DEFAULT_REGIONS,
    ) -> None:
        wanted = set(types)
        if unknown := sorted(wanted - set(KINDS)):
            raise ValueError(f"{unknown[0]!r} is no type of personal data: {', '.join(KINDS)} are, and patterns.")
        if strategy not in STRATEGIES:
            raise ValueError(f"{strategy!r} is no strategy: {', '.join(STRATEGIES)} are.")
        if not wanted and not patterns:
            raise ValueError("Neither types nor patterns of personal data are named.")
        self._own = own_patterns(patterns or {})
        self._finders: tuple[_Find, ...] = (*_finders(wanted, regions), *(pattern.find for pattern in self._own))
        self._quick_check = QuickCheck()
        self._labels = labels_of({*KINDS, NOT_SEARCHED, *(pattern.name for pattern in self._own)})
        self._blocks = strategy == "block"
        e164 = NumberPlans(regions).e164 if "phone" in wanted else lambda _: None
        self._hiding = hiding(strategy, key, e164)

    def find(self, text: str) -> list[FoundData]:
        """Return the findings in a text, sorted and disjoint (see `findings.settled`).

        Labels that hide something are left out.
        """
        return self._found([text], [""]).get(0, [])

    def hide(self, value: Any) -> HiddenValue:
        """Return a JSON value with everything hidden that `find` finds in its texts, names of members and numbers.

        A number is replaced by a text. What is deeper than 100 levels, or is no JSON, becomes `[NOT_SEARCHED]`. Already
        hidden data stays as it is. With `block` it raises `PersonalDataBlocked`, for the first place in the value's
        order.
        """
        if not self._own and self._quick_check.rules_out(value):  # nearly always
            return HiddenValue(value, {})
        leaves = JsonLeaves(value, all_numbers=bool(self._own))
        found = self._found(leaves.texts, leaves.names)
        if not found and not leaves.unsearched:
            return HiddenValue(value, {})
        if self._blocks:
            first = min([*found, *leaves.unsearched])
            kind = NOT_SEARCHED if first in leaves.unsearched else found[first][0].kind
            pointer, is_name = leaves.pointer(first)
            raise PersonalDataBlocked(kind, pointer, is_name=is_name)
        counts = Counter(each.kind for each in chain.from_iterable(found.values()))
        texts = self._hidden(leaves, found) | dict.fromkeys(leaves.unsearched, label(NOT_SEARCHED))
        if leaves.unsearched:
            counts[NOT_SEARCHED] = len(leaves.unsearched)
        return HiddenValue(leaves.rebuilt(texts), dict(counts))

    async def hide_aside(self, value: Any, *, size: int) -> HiddenValue:
        """Return the same without holding the event loop: a value of `size` bytes of JSON is searched in a thread if it is large."""
        return await aside(partial(self.hide, value), is_large=size > _LARGE)

    def _hidden(self, leaves: JsonLeaves, found: dict[int, list[FoundData]]) -> dict[int, str]:
        """Return the texts with something in them, hidden: until nothing is found any more, as where a new edge shows something."""
        texts = dict[int, str]()
        for _ in range(_MOST_ROUNDS):
            if not found:
                return texts
            for number, places in found.items():
                texts[number] = self._replaced(texts.get(number, leaves.texts[number]), places)
            numbers = list(found)
            again = self._found([texts[number] for number in numbers], [leaves.names[number] for number in numbers])
            found = {numbers[place]: places for place, places in again.items()}
        return texts | {number: label(places[0].kind) for number, places in found.items()}

    def _replaced(self, text: str, places: list[FoundData]) -> str:
        pieces, position = list[str](), 0
        for each in places:
            value = text[each.start : each.end] if each.value is None else each.value
            hidden = self._hiding(each.kind, value) if each.is_one else label(each.kind)
            pieces += (text[position : each.start], hidden)
            position = each.end
        return "".join([*pieces, text[position:]])

    def _found(self, texts: Sequence[str], names: Sequence[str]) -> dict[int, list[FoundData]]:
        """Return the findings by the number of their text, without texts that have none."""
        searched = SearchedTexts(texts, names, self._labels)
        decoded = self._decoded(searched, names)
        # An address as it is written, such as `x%20ada@…`, may have more before it than its reader gets. So may no URL.
        ends = {(each.kind, each.end) for each in decoded if each.kind in _WITHOUT_CODES}
        written = (each for each in self._detected(searched) if (each.kind, each.end) not in ends)
        all_found = [*written, *decoded]
        by_text = dict[int, list[FoundData]]()
        for each in settled(all_found):
            number = searched.text_at(each.start)
            by_text.setdefault(number, []).append(each.moved(-searched.starts[number]))
        return by_text

    def _detected(self, searched: SearchedTexts) -> Iterator[FoundData]:
        for find in self._finders:
            yield from find(searched)

    def _decoded(self, searched: SearchedTexts, names: Sequence[str]) -> list[FoundData]:
        """Return the findings in decoded texts, at their places in the original text."""
        if not (coded := searched.coded()):  # nearly always
            return []
        numbers, texts = list(coded), list(coded.values())
        decoded = SearchedTexts([text.text for text in texts], [names[number] for number in numbers], self._labels)
        found = list[FoundData]()
        for each in self._detected(decoded):
            place = decoded.text_at(each.start)
            begin = decoded.starts[place]
            start, end = texts[place].original(each.start - begin, each.end - begin)
            value = decoded.joined[each.start : each.end]
            found.append(FoundData(each.kind, start, end, value=value).moved(searched.starts[numbers[place]]))
        return found


def _finders(wanted: set[str], regions: Sequence[str]) -> list[_Find]:
    made: dict[str, Any] = {
        "iban": IbanDetector,
        "credit_card": CardDetector,
        "mac_address": MacAddressDetector,
        "ip": IpDetector,
        "email": EmailDetector,
        "url": UrlDetector,
        "phone": partial(PhoneDetector, regions),
    }
    return [make().find for kind, make in made.items() if kind in wanted]


class QuickCheck:
    """Checks values for all types of personal data at once; own patterns are not included.

    It never says that there is nothing where a detector would find something: each of its alternatives is a part of
    what a detector's finding must have, and none of these parts can have a quote, a comma or a bracket of JSON in it.
    What it cannot judge (other scripts, exponents, anything that is no JSON, deep values) it leaves to the detectors.
    """

    def __init__(self) -> None:
        self._parts = scanner("|".join(_PARTS))
        self._encode = JSONEncoder(ensure_ascii=False, check_circular=False).encode

    def rules_out(self, value: Any) -> bool:
        """Return whether nothing in a JSON value can be personal data."""
        try:
            text = self._encode(value)
        except (TypeError, ValueError, RecursionError):
            return False
        if not text.isascii() or text.count("[") + text.count("{") > _MOST_BRACKETS:
            return False
        return self._parts.search(text.encode()) is None
