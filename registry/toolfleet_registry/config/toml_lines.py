"""Finds the line of a TOML document on which a key, a table or an element of an array begins.

No TOML parser reports lines: the document is read up to one line after the other, as few times as needed.
"""

import tomllib
from collections.abc import Sequence
from typing import Any


def line_of(path: Sequence[str | int], text: str) -> int | None:
    """The line, from 1 on, of what stands at this path of keys and places; `None` if there is nothing, or it is no TOML."""
    lines = text.splitlines()
    if not path or not _has(path, lines, len(lines)):
        return None
    without, within = 0, len(lines)  # the first so many lines have nothing there, and these do
    while within - without > 1:
        tried = _readable_between(lines, without, within)
        if tried is None:
            break
        if _has(path, lines, tried):
            within = tried
        else:
            without = tried
    begun = (number for number, line in enumerate(lines[without:within], without + 1) if _says_something(line))
    return next(begun, within)


def _readable_between(lines: Sequence[str], low: int, high: int) -> int | None:
    """Return how many lines, more than `low` and less than `high`, can be parsed by themselves; the nearest to the middle."""
    middle = (low + high) // 2
    below, above = range(middle, low, -1), range(middle + 1, high)
    return next((number for number in (*below, *above) if _read(lines, number) is not None), None)


def _read(lines: Sequence[str], number: int) -> dict[str, Any] | None:
    try:
        return tomllib.loads("\n".join(lines[:number]))
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _has(path: Sequence[str | int], lines: Sequence[str], number: int) -> bool:
    found: Any = _read(lines, number)
    for part in path:
        try:
            found = found[part]
        except (LookupError, TypeError):
            return False
    return True


def _says_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")
