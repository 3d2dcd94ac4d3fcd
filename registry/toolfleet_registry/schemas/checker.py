"""Compiles one JSON Schema, and finds what in a value does not fit it. Draft 2020-12, older ones where `$schema` says so.

Nothing is fetched, and neither a schema nor a value can take the time or the memory of others: what would is refused.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from jsonschema_rs import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
    FancyRegexOptions,
    RegexOptions,
    ValidationError,
    Validator,
)

from toolfleet_registry.schemas.effort import Effort, TooIntricate, effort_of
from toolfleet_registry.schemas.faults import FaultWords, names_in
from toolfleet_registry.schemas.load import WEIGHT_OF_SMALL, is_small, load_of, price_of_patterns
from toolfleet_registry.schemas.outline import Outline, outline_of
from toolfleet_registry.schemas.patterns import BACKTRACKING, MOST_STATES, PatternSizes, sizes_in
from toolfleet_registry.schemas.subschemas import ReferenceUnknown, SchemaDocument

T = TypeVar("T")

MAX_SCHEMA_CHARACTERS = 2**18
"""Of a schema as JSON: ten times what the largest real ones have."""

MOST_UNITS = 2_000_000
"""For a value to be checked once: some 20 ms, and usually far less."""

_SHOWN = 100  # characters of foreign text
_LIGHT = 50  # units for one value: as most tools have them
_ASKED = 6  # times as long as one check, at most, to narrow a value and explain what is left of it
_MOST_EXPLAINED = 100_000  # values
_MOST_ERRORS = 1_000  # units: an error takes some 15 to 30 µs, and a kilobyte
_MOST_COPIED = 30_000_000  # characters, at 1 ns
_MOST_STATES = 16_000  # of all patterns: some 3 MB, and 20 ms to compile them
_STATES_OF_ANY = 16
_BYTES_OF_ANY, _BYTES_A_STATE = 2**13, 160  # measured: at most 130 for each, and for 20 more
_MOST_OF_A_CACHE = 2**16  # bytes, which a pattern may take when it is used
_MOST_TRIES = 10_000
_DRAFTS: Mapping[str, type[Validator]] = {
    "http://json-schema.org/draft-04/schema": Draft4Validator,
    "http://json-schema.org/draft-06/schema": Draft6Validator,
    "http://json-schema.org/draft-07/schema": Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": Draft201909Validator,
}

_KEPT = 50  # items of a list that is cut: more than most lists must have at least


class SchemaWrong(ValueError):
    """A schema that nothing can be checked against. The text, a clause, says why."""


@dataclass(frozen=True)
class Checker:
    """A compiled schema. `text` is its JSON."""

    text: str
    effort: Effort
    patterns: PatternSizes
    _document: SchemaDocument
    _validator: Validator

    def fits(self, value: Any) -> bool:
        """Return whether the value is valid. About a microsecond for a usual one."""
        try:
            return _guarded(self._validator.is_valid, value)
        except ValueError:  # of a Python type that the validator does not know, such as a subclass of `str`
            return self._fits_as_json(value)

    def price(self, value: Any, *, values: int, is_known_small: bool = False) -> int | None:
        """Units of 10 ns, at most, to check it once; `None` if it may take longer than `MOST_UNITS`, or has more `values`."""
        if self._is_light and (is_known_small or is_small(value)):
            return WEIGHT_OF_SMALL * _LIGHT
        load = load_of(value, most=values)
        if load is None or (units := load.price(self.effort)) > MOST_UNITS:
            return None
        units += price_of_patterns(self.effort, value, most=MOST_UNITS)
        return units if units <= MOST_UNITS else None

    @cached_property
    def _is_light(self) -> bool:
        return max(self.effort.prices) <= _LIGHT and not self.effort.patterns and not self.effort.compares_items

    def why_not(self, value: Any, root: str) -> str:
        """Return what is wrong with an invalid value, as sentences; `root` is its name in them."""
        words = FaultWords(root, self._document.root, self._names)
        return words.text(self._errors(value), value) or f"What is in {root} does not fit the tool's schema."

    @cached_property
    def outline(self) -> Outline | None:
        """What surely holds at each place of a value, as the schema says."""
        return outline_of(self._document)

    @cached_property
    def has_defaults(self) -> bool:
        """Whether the schema may have a default."""
        return '"default"' in self.text

    @cached_property
    def _has_alternatives(self) -> bool:
        return '"anyOf"' in self.text or '"oneOf"' in self.text

    @cached_property
    def _names(self) -> frozenset[str]:
        return names_in(self._document.root)

    def _fits_as_json(self, value: Any) -> bool:
        try:
            return _guarded(self._validator.is_valid, json.loads(json.dumps(value)))
        except (TypeError, ValueError, RecursionError):
            return False

    def _errors(self, value: Any) -> Iterable[ValidationError]:
        """The validator finds all errors at once, and copies into each what it is about: not of everything at once."""
        if self._can_explain(value, value):
            return self._all_errors(value)
        price = self.price(value, values=_MOST_EXPLAINED)
        if price is None or price * _ASKED > MOST_UNITS:
            return ()
        part = _narrowed(value, self.fits)
        if self._can_explain(part.value, part.sketch):
            return [error for error in self._all_errors(part.value) if error.instance_path not in part.cut]
        return () if self._has_alternatives else self._first_error(value)

    def _can_explain(self, value: Any, sketch: Any) -> bool:
        load, faulty = load_of(value, most=_MOST_EXPLAINED), load_of(sketch, most=_MOST_ERRORS)
        if load is None or faulty is None:
            return False
        errors = faulty.visits(self.effort) * (1 + self.effort.largest_enum // 4)
        copied = faulty.text * self.effort.most_visits + (load.text if sketch is not value else 0)
        return errors <= _MOST_ERRORS and copied <= _MOST_COPIED

    def _all_errors(self, value: Any) -> Iterable[ValidationError]:
        try:
            return _guarded(self._validator.iter_errors, value)
        except ValueError:
            return ()

    def _first_error(self, value: Any) -> Iterable[ValidationError]:
        load = load_of(value, most=_MOST_EXPLAINED)
        if load is None or load.text > _MOST_COPIED:
            return ()
        try:
            _guarded(self._validator.validate, value)
        except ValidationError as exc:
            return [exc]
        except ValueError:
            return ()
        return ()


def compiled(schema: Mapping[str, Any]) -> Checker:
    """Compile a schema. Raises `SchemaWrong`. A usual one takes some 50 µs, the largest some 40 ms."""
    text = text_of(schema)
    document = SchemaDocument(json.loads(text))
    patterns = _sizes(document.root, text)
    try:
        effort = effort_of(document)
    except ReferenceUnknown as exc:
        raise SchemaWrong(f"it refers to {_shown(str(exc))}, which is not in it; nothing is fetched") from None
    except TooIntricate as exc:
        raise SchemaWrong(str(exc)) from None
    return Checker(text, effort, patterns, document, _validator(document.root, text, patterns.largest))


def text_of(schema: Mapping[str, Any]) -> str:
    """The schema as JSON. Raises `SchemaWrong` for one that has no such text, or too long a one."""
    try:
        text = json.dumps(schema, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise SchemaWrong("it is not JSON, or nested too deep") from None
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise SchemaWrong(f"it has more than {MAX_SCHEMA_CHARACTERS} characters")
    return text


def _sizes(schema: dict[str, Any], text: str) -> PatternSizes:
    if '"pattern' not in text:
        return PatternSizes()
    sizes = sizes_in(schema)
    # A pattern of nothing still takes its time, and some memory when it is used.
    if sizes.largest > MOST_STATES or sizes.states + _STATES_OF_ANY * sizes.count > _MOST_STATES:
        raise SchemaWrong("its patterns are too many, or too large")
    return sizes


def _validator(schema: dict[str, Any], text: str, states: int) -> Validator:
    name = schema.get("$schema")
    size = _BYTES_OF_ANY + _BYTES_A_STATE * states  # so that none can be larger than what it was counted for
    make = _DRAFTS.get(name.rstrip("#"), Draft202012Validator) if isinstance(name, str) else Draft202012Validator
    try:
        try:
            return _made(make, schema, RegexOptions(size_limit=size, dfa_size_limit=_MOST_OF_A_CACHE))
        except ValidationError:
            # Patterns that look ahead or back need another engine, which is given up soon when it tries too much.
            if not BACKTRACKING.search(text):
                raise
            tracking = FancyRegexOptions(backtrack_limit=_MOST_TRIES, size_limit=size, dfa_size_limit=_MOST_OF_A_CACHE)
            return _made(make, schema, tracking)
    except ValidationError as exc:
        raise SchemaWrong(_why_wrong(exc, schema)) from None
    except ValueError:
        raise SchemaWrong("it is nested too deep") from None


def _made(make: type[Validator], schema: dict[str, Any], patterns: RegexOptions | FancyRegexOptions) -> Validator:
    # Formats are annotations in draft 2020-12, and modules differ in what they take for a date.
    return _guarded(lambda: make(schema, offline=True, validate_formats=False, pattern_options=patterns))


def _why_wrong(exc: ValidationError, schema: dict[str, Any]) -> str:
    if exc.kind.name in {"format", "pattern"}:
        return f"its pattern {_shown(str(exc.instance))} cannot be used"
    text = FaultWords("schema", schema, names=None).text([exc], schema)
    return text.removesuffix(".") if exc.kind.name != "$ref" else _shown(exc.message)


def _guarded(function: Callable[..., T], *args: Any) -> T:
    """A defect of the validator must be one call's, and is no `Exception` in Python."""
    try:
        return function(*args)
    except Exception:
        raise
    except BaseException as exc:
        if type(exc).__name__ != "PanicException":
            raise
        raise ValueError("the validator has failed") from exc


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A value that is invalid for the same reason as a larger one.

    `sketch` has of each list only the items that may be at fault. `cut`: paths of the lists that are not whole, so that
    a statement about one of them as a whole may not be true.
    """

    value: Any
    sketch: Any
    cut: tuple[list[str | int], ...]


def _narrowed(value: Any, fits: Callable[[Any], bool]) -> Narrowed:
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
        """Return the long lists by the names of members; `None` is the value itself."""
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
