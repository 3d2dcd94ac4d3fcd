"""Weighs a value: how large it is, as far as it matters for checking it.

Nearly all arguments are small, which is seen at once, so that what guards against the others costs them nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolfleet_registry.schemas.effort import TOO_MUCH, Effort
from toolfleet_registry.schemas.patterns import NO_PATTERNS, Patterns
from toolfleet_registry.schemas.prices import weight_of

MOST_VALUES = 48
PLAIN_INTEGER = 2**53
"""Integers below are compared as they are."""
PLAIN_FLOATS = 1e-19, 1e19
"""Floats between these, or 0, have an exponent that does not matter."""

MOST_BYTES = 100_000
"""Of a small value as JSON: each character may be written as an escape of six, and each number as some 25."""

_CHARACTERS = 16_000  # of all texts, those of names counted four times


def is_small(value: Any) -> bool:
    """Return whether a value is surely JSON of at most `MOST_VALUES` values: ASCII texts and usual numbers.

    Takes some 3 µs.

    A value that has no plain type of Python's may be JSON too, and is checked elsewhere.
    """
    values, texts, characters = [value], list[str](), 0
    for each in values:  # grows meanwhile
        kind = type(each)
        if kind is str:
            texts.append(each)
        elif kind is dict or kind is list:
            if len(values) + len(each) > MOST_VALUES:
                return False
            if kind is list:
                values += each
                continue
            try:
                names = "".join(each)
            except TypeError:  # a name that is no text
                return False
            characters += 4 * len(names)
            if not names.isascii():
                return False
            values += each.values()
        elif not ((kind is int and -PLAIN_INTEGER < each < PLAIN_INTEGER) or _is_usual(each, kind)):
            return False
    return characters + sum(map(len, texts)) <= _CHARACTERS and all(map(str.isascii, texts))


def _is_usual(each: Any, kind: type) -> bool:
    """Return whether a value that is neither a text, a container nor a usual integer is usual."""
    if kind is float:
        number: float = each
        return _LEAST < number < _MOST or -_MOST < number < -_LEAST or number == 0
    return each is None or kind is bool


_LEAST, _MOST = PLAIN_FLOATS


_OF_A_VALUE = 120  # characters that a value takes as long to copy as, in addition to its texts
_SHIFT = 7  # of a text, 2**7 characters weigh as much as a value; of a name, 2**5
_NAME_SHIFT = 5
_SMALLEST, _LARGEST = PLAIN_FLOATS
_OF_A_FLOAT = 10
_HEAVIEST = 2_000_000  # of one level: each unit of weight takes 10 ns or more
WEIGHT_OF_SMALL = 800
"""No small value (see `is_small`) weighs more."""
_COMPARED_AT_ONCE = 15  # integers that are not plain are compared each with each, where no two may be equal


@dataclass(frozen=True, slots=True)
class Load:
    """`levels`: how many values, names of members included, lie how many levels down. `weights`: what they weigh.

    `characters`: of all texts; `squares`: the sum of their squares for each text. `wide`: integers that are not plain.
    """

    levels: tuple[int, ...]
    weights: tuple[int, ...]
    characters: int
    squares: int
    wide: int

    @property
    def values(self) -> int:
        """All values and names."""
        return sum(self.levels)

    def visits(self, effort: Effort) -> int:
        """Return the most visits of its validation."""
        return _sum(self.levels, effort.visits)

    def price(self, effort: Effort) -> int:
        """Units, at most, to check it; the patterns are not among them."""
        each_with_each = self.wide // _COMPARED_AT_ONCE if effort.compares_items else 0
        return min(TOO_MUCH, _sum(self.weights, effort.prices) * (1 + each_with_each))

    @property
    def text(self) -> int:
        """Characters, at most, to copy each of its values on its own."""
        return (self.characters + _OF_A_VALUE * self.values) * len(self.levels)


def load_of(value: Any, *, most: int) -> Load | None:
    """`None` for more than `most` values, or numbers that cannot be compared in time. Takes some 100 ns for each."""
    levels, weights, now, values = list[int](), list[int](), [value], 0
    characters = squares = wide = 0
    while now:
        after, lengths, name_lengths, numbers, names = list[Any](), list[int](), list[int](), list[Any](), 0
        for each in now:
            if isinstance(each, str):
                lengths.append(len(each))
            elif isinstance(each, int | float):
                numbers.append(each)
            elif isinstance(each, dict):
                names += len(each)
                name_lengths.append(sum(map(len, each)))
                after += each.values()
            elif isinstance(each, list | tuple):
                after += each
        heavy, weight = _numbers(numbers)
        weight += len(now) + names + (sum(lengths) >> _SHIFT) + (sum(name_lengths) >> _NAME_SHIFT)
        characters += sum(lengths) + sum(name_lengths)
        squares += sum([length * length for length in (*lengths, *name_lengths)])
        levels.append(len(now) + names)
        weights.append(weight)
        values, wide = values + levels[-1], wide + heavy
        if values + len(after) > most or weight > _HEAVIEST:
            return None
        now = after
    return Load(tuple(levels), tuple(weights), characters, squares, wide)


def _numbers(numbers: list[Any]) -> tuple[int, int]:
    """Return how many of these integers are not plain, and the extra weight of all of them."""
    if not numbers:
        return 0, 0
    wide = weight = 0
    for each in numbers:
        if isinstance(each, int):
            if not -PLAIN_INTEGER < each < PLAIN_INTEGER:
                wide, weight = wide + 1, weight + weight_of(each)
        elif _SMALLEST < each < _LARGEST or -_LARGEST < each < -_SMALLEST or not each:
            weight += _OF_A_FLOAT
        else:
            weight += weight_of(each)
        if weight > _HEAVIEST:
            break
    return wide, weight


def price_of_patterns(effort: Effort, value: Any, *, most: int) -> int:
    """Units, at most, to match the texts in it with the patterns that its schema has for them; more than `most` are many."""
    if not effort.patterns:
        return 0
    if not isinstance(value, dict):
        return _matched(effort.patterns.get("", NO_PATTERNS), value, most)
    everywhere, units, others = effort.patterns.get("*", NO_PATTERNS), 0, list[Any]()
    for name, member in value.items():
        patterns = effort.patterns.get(name)
        if patterns is None:
            others += (name, member)
        else:
            units += _matched(patterns + everywhere, [name, member], most)
    return units + _matched(everywhere, others, most)


def _sum(counts: Sequence[int], units: Sequence[int]) -> int:
    last = len(units) - 1
    return sum([count * units[min(level, last)] for level, count in enumerate(counts)])


def _matched(patterns: Patterns, value: Any, most: int) -> int:
    if patterns == NO_PATTERNS:
        return 0
    load = load_of(value, most=most)
    if load is None:
        return TOO_MUCH
    return patterns.a_character * load.characters + patterns.a_square * load.squares + patterns.a_text * load.values
