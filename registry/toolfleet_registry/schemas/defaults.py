"""Fills in the defaults of a tool's schema where a call says nothing.

Only into objects that are there: an object that is missing is made by its own default or not at all. A default that
stands in an alternative, or beside a different one for the same place, is no default.
"""

import copy
import json
from collections.abc import Callable
from itertools import islice
from typing import Any

from toolfleet_registry.schemas.outline import Outline, Path, values_in, with_changes

_MOST = 2_000  # places of one call; with more none is filled in, for a small call must not become a huge one
_MOST_PLACES = 5_000  # objects and arrays that are looked into: some 10 ms
_MOST_CHARACTERS = 200_000  # of all that is filled in, as JSON
_MOST_TRIED = 50  # one by one, if not all fit together

Filling = list[tuple[Path, Any]]
"""What is to be filled in: paths and values."""


def filling_for(outline: Outline, arguments: dict[str, Any]) -> Filling:
    """What these arguments lack, and has a default; nothing for those with more than 5,000 objects and arrays."""
    found, characters = Filling(), 0
    for seen, (path, inner, value) in enumerate(values_in(outline, arguments, leaves=False)):
        if seen >= _MOST_PLACES:
            return []
        if not isinstance(value, dict):
            continue
        for name, default in inner.defaults().items():
            if name not in value:
                characters += len(json.dumps(default, default=str)) if isinstance(default, dict | list | str) else 0
                if len(found) >= _MOST or characters > _MOST_CHARACTERS:
                    return []
                found.append(((*path, name), default))
    return found


def filled(
    arguments: dict[str, Any],
    filling: Filling,
    fits: Callable[[dict[str, Any]], bool],
    affords: Callable[[dict[str, Any]], int],
) -> dict[str, Any] | None:
    """The arguments with all of it; if that does not fit, with what of it fits; `None` if they fit in no way.

    `affords` says how often such arguments may be checked: where that is too seldom, it is all of it or nothing.
    """
    full = _with(arguments, filling)
    most = affords(full)
    if most and fits(full):
        return full
    is_fit = fits(arguments)
    if most < _MOST_TRIED:
        return arguments if is_fit else None
    return _grown(arguments, filling, fits) if is_fit else _shrunk(arguments, filling, fits)


def _grown(arguments: dict[str, Any], filling: Filling, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    kept = Filling()
    for each in islice(filling, _MOST_TRIED):
        if fits(_with(arguments, [*kept, each])):
            kept.append(each)
    return _with(arguments, kept)


def _shrunk(
    arguments: dict[str, Any], filling: Filling, fits: Callable[[dict[str, Any]], bool]
) -> dict[str, Any] | None:
    """A required member has its default, and one of the others does not fit."""
    for index in range(min(len(filling), _MOST_TRIED)):
        tried = _with(arguments, [*filling[:index], *filling[index + 1 :]])
        if fits(tried):
            return tried
    return None


def _with(arguments: dict[str, Any], filling: Filling) -> dict[str, Any]:
    """Each time new copies: what a call carries must not change the schema, nor another call."""
    changes = ((path, copy.deepcopy(value) if isinstance(value, dict | list) else value) for path, value in filling)
    return with_changes(arguments, changes)
