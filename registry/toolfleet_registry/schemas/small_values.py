"""Recognizes small JSON values, as nearly all arguments are, so that what guards against the others costs them nothing."""

from typing import Any

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
