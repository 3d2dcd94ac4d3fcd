"""Finds the part of a large value that does not fit, by leaving out the rest: only that part need be spoken of."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_KEPT = 50  # items of a list that is cut: more than most lists must have at least


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A value that does not fit for the same reason as a larger one.

    `sketch` has of each list only what may be at fault. `cut`: paths of the lists that are not whole, so that what is
    said of one of them as a whole may not be true.
    """

    value: Any
    sketch: Any
    cut: tuple[list[str | int], ...]


def narrowed(value: Any, fits: Callable[[Any], bool]) -> Narrowed:
    """Cut the long lists in a value, or the value itself, down to an item that is wrong.

    What it asks `fits` takes as long in all as asking for the whole value some five times.
    """
    whole = _Whole(value)
    lists = whole.long_lists()
    short = {name: items[:_KEPT] for name, items in lists.items()}
    paths = tuple(list[str | int]([] if name is None else [name]) for name in lists)
    small = whole.with_lists(short)
    if not fits(small):
        return Narrowed(small, small, paths)
    for name, items in lists.items():
        if not fits(whole.with_lists({**short, name: items})):
            length = 1 + _wrong_item(items, functools.partial(_is_wrong, fits, whole, short, name))
            found = whole.with_lists({**short, name: items[:length]})
            if not fits(found):
                return Narrowed(found, whole.with_lists({**short, name: items[length - 1 : length]}), paths)
    return Narrowed(value, value, ())


def _is_wrong(
    fits: Callable[[Any], bool], whole: "_Whole", short: dict[str | None, list[Any]], name: str | None, items: list[Any]
) -> bool:
    return not fits(whole.with_lists({**short, name: items}))


def _wrong_item(items: list[Any], is_wrong: Callable[[list[Any]], bool]) -> int:
    """The index of an item that is wrong by itself, found by halves; of any, if there is none.

    The first ones, which are right, stay before each part: a list may have to have so many.
    """
    start, end = _KEPT, len(items)
    while end - start > 1:
        middle = (start + end) // 2
        is_before = is_wrong(items[:_KEPT] + items[start:middle])
        start, end = (start, middle) if is_before else (middle, end)
    return start


@dataclass(frozen=True, slots=True)
class _Whole:
    value: Any

    def long_lists(self) -> dict[str | None, list[Any]]:
        """By the names of members; `None` is the value itself."""
        members: dict[str | None, Any] = dict(self.value) if isinstance(self.value, dict) else {None: self.value}
        return {
            name: list(items)
            for name, items in members.items()
            if isinstance(items, list | tuple) and len(items) > _KEPT
        }

    def with_lists(self, lists: dict[str | None, list[Any]]) -> Any:
        if None in lists:
            return lists[None]
        return {**self.value, **lists} if lists else self.value
