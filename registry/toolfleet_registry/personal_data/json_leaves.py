"""Collects the texts in JSON values, names of members and numbers too, and rebuilds the values with other texts."""

from collections.abc import Mapping
from typing import Any

DEEPEST = 100
"""Levels of a value, as bodies of HTTP may have; what lies deeper is not searched, but hidden as a whole."""

_SMALLEST = 1_000_000  # numbers with fewer digits are no phone's
_LONGEST = 4000 * 3  # bits: Python writes no longer number as a text


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
        """The value with these texts in the place of those with their numbers; what holds none of them is in it as it was."""
        return _Rebuilding(texts, all_numbers=self._all_numbers).rebuilt(self._value, 0)

    def pointer(self, number: int) -> tuple[str, bool]:
        """The JSON pointer (RFC 6901) of a text, and whether it is a name in what is there, which the pointer leaves out."""
        search = _Rebuilding({}, all_numbers=self._all_numbers, wanted=number)
        search.rebuilt(self._value, 0)
        steps, is_name = search.place
        return "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in steps), is_name


def _number(value: Any) -> str | None:
    """A number as a text; `None` for what is none, or too long."""
    if isinstance(value, int):
        return str(value) if value.bit_length() <= _LONGEST else None
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
        """The value, or a copy if something in it is replaced."""
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
    """Names of which no two are the same: `[EMAIL]`, `[EMAIL][SAME_2]`. Those that are as they were stay so."""
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
