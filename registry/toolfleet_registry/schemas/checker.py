"""Compiles one JSON Schema, finds what in a value does not fit it, and describes that for a model.

It never repeats the value: no text, no number, and no name of a member that the schema does not have itself, for a
map's names are data. But an argument's own name, and one that is nearly the schema's, is a typing mistake, and is
named.

Nothing is fetched, and neither a schema nor a value can take the time or the memory of others: what would is refused.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
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

from toolfleet_registry.schemas.effort import (
    WEIGHT_OF_SMALL,
    Effort,
    Outline,
    TooIntricate,
    effort_of,
    is_small,
    load_of,
    outline_of,
    price_of_patterns,
)
from toolfleet_registry.schemas.patterns import BACKTRACKING, MOST_STATES, PatternSizes, sizes_in
from toolfleet_registry.schemas.subschemas import ReferenceUnknown, SchemaDocument

MOST_FAULTS = 3

_MOST_CHARACTERS = 800  # of all faults together

_MOST_STEPS = 8

_MOST_OPTIONS = 10

_MOST_READ = 50  # faults; a text says if there are more

_SHOWN = 60  # characters of a name, a pattern, an allowed value

_MOST_COMPARED = 100  # names; comparing two takes some 20 µs, and the event loop waits

_SAYABLE = r"(?a)[A-Za-z0-9_$@.-]{1,60}"

_NAME = r"(?a)[A-Za-z_][A-Za-z0-9_]{0,39}"  # names surely meant as an argument's

_ARGUMENTS = "arguments"

_CLOSING = frozenset({"additionalProperties", "unevaluatedProperties"})

_CLOSED = [[keyword] for keyword in sorted(_CLOSING)]

_DEEPEST = 4  # alternatives within alternatives

_TYPES: Mapping[str, str] = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "a boolean",
    "array": "an array",
    "object": "an object",
}

_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (str, "a string"),
    (int, "an integer"),
    (float, "a number"),
    ((list, tuple), "an array"),
    (dict, "an object"),
)

_LIMITS: Mapping[str, tuple[str, str]] = {
    "minimum": ("be at least", ""),
    "maximum": ("be at most", ""),
    "exclusiveMinimum": ("be more than", ""),
    "exclusiveMaximum": ("be less than", ""),
    "minLength": ("have at least", " characters"),
    "maxLength": ("have at most", " characters"),
    "minItems": ("have at least", " items"),
    "maxItems": ("have at most", " items"),
    "additionalItems": ("have at most", " items"),
    "minProperties": ("have at least", " members"),
    "maxProperties": ("have at most", " members"),
}

_OTHERS: Mapping[str, str] = {
    "falseSchema": "is not allowed",
    "not": "must not be what its schema excludes",
    "uniqueItems": "must not have two equal items",
    "contains": "must have items of the kind, and as many, as its schema says",
    "unevaluatedItems": "must not have items that its schema does not have",
    "format": "must be of the format that its schema asks for",
}

T = TypeVar("T")

MAX_SCHEMA_CHARACTERS = 2**18
"""Of a schema as JSON: ten times what the largest real ones have."""

MOST_UNITS = 2_000_000
"""For a value to be checked once: some 20 ms, and usually far less."""

_LOCATIONS_SHOWN = 100  # characters of foreign text

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


@dataclass(frozen=True, slots=True)
class FaultWords:
    """Speaks of one value, named `root` in the text, by its schema.

    `names`: those that stand in the schema; `None` if every name may be said.
    """

    root: str
    schema: Mapping[str, Any]
    names: frozenset[str] | None

    def text(self, errors: Iterable[ValidationError], value: Any) -> str:
        """Return the faults as sentences: at most three, and bounded in length."""
        found = dict[str, None]()
        for error in islice(errors, _MOST_READ):
            found.update(dict.fromkeys(self._faults(error, value, depth=0)))
        shown = list(islice(found, MOST_FAULTS))
        if len(found) > len(shown):
            shown.append(f"And there are {len(found) - len(shown)} more faults")
        text = " ".join(f"{fault}." for fault in shown)
        return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"

    def _faults(self, error: ValidationError, value: Any, *, depth: int) -> Iterator[str]:
        place, found = self._place(error.instance_path, value)
        kind, data = error.kind.name, error.kind.as_dict()
        if kind == "required":
            yield f"{place}{self._step(data['property'])} is missing"
        elif kind in {"anyOf", "oneOf"} and (branches := data.get("context")):
            yield from self._alternatives(error, branches, value, depth=depth)
        elif kind == "propertyNames":
            yield f"{place} must have other names: each {_asked(data['error'])}"
        elif kind in _CLOSING or (kind == "falseSchema" and error.schema_path[-1:] in _CLOSED):
            yield f"{place} must not have {self._unexpected(error, list(data.get('unexpected') or ()))}"
        elif kind == "type":
            yield f"{place} must be {_types(data['types'])}, not {_kind(found)}"
        else:
            yield f"{place} {_asked(error)}"

    def _alternatives(self, error: ValidationError, branches: Any, value: Any, *, depth: int) -> Iterator[str]:
        place, found = self._place(error.instance_path, value)
        if error.kind.name == "oneOf" and any(not branch for branch in branches):
            yield f"{place} fits several of the alternatives in its schema, and must fit exactly one"
            return
        here = len(error.instance_path)
        # Alternatives of another type were not meant: what is wrong with the others is of use.
        meant = [branch for branch in branches if not any(_is_type_error(each, here) for each in branch)]
        if not meant:
            types = [
                name
                for branch in branches
                for each in branch
                if _is_type_error(each, here)
                for name in each.kind.as_dict()["types"]
            ]
            yield f"{place} must be {_types(list(dict.fromkeys(types)))}, not {_kind(found)}"
            return
        nearest = min(meant, key=len)
        if len(meant) > 1:
            yield f"{place} fits none of the {len(branches)} alternatives in its schema"
        if depth < _DEEPEST:
            for each in islice(nearest, MOST_FAULTS):
                yield from self._faults(each, value, depth=depth + 1)

    def _unexpected(self, error: ValidationError, unexpected: list[str]) -> str:
        known = self._siblings(error.schema_path)
        said = self._slips(unexpected, known, is_argument=self.root == _ARGUMENTS and not error.instance_path)
        left = max(len(unexpected), 1) - len(said)
        if said:
            what = " and ".join([", ".join(said), *([f"{left} more"] if left else [])])
        else:
            names = "a name" if left == 1 else f"{left} names"
            what = f"{names} that the schema does not {'have' if known else 'allow'}"
        return f"{what}; the schema has {_listed([repr(_cut(name)) for name in known])}" if known else what

    def _slips(self, unexpected: list[str], known: list[str], *, is_argument: bool) -> list[str]:
        """Return the names that may be said, with what was probably meant."""
        found = list[str]()
        for name in unexpected[:MOST_FAULTS]:
            near = _near(name, known) if re.fullmatch(_SAYABLE, name) else None
            if near is not None:
                found.append(f"{name!r} (did you mean {_cut(near)!r}?)")
            elif is_argument and re.fullmatch(_NAME, name):
                found.append(repr(name))
        return found

    def _siblings(self, path: list[str | int]) -> list[str]:
        """Return the names of the properties next to a keyword."""
        node: Any = self.schema
        for step in path[:-1]:
            if isinstance(node, dict) and isinstance(step, str):
                node = node.get(step)
            elif isinstance(node, list) and isinstance(step, int) and step < len(node):
                node = node[step]
            else:
                return []
        properties = node.get("properties") if isinstance(node, dict) else None
        return list(properties) if isinstance(properties, dict) else []

    def _place(self, path: list[str | int], value: Any) -> tuple[str, Any]:
        """Return a path such as `arguments.items[3].name`, and the value there.

        A name that is data is only counted: `<name 2>`.
        """
        steps = [self.root]
        for step in path:
            if isinstance(value, dict) and isinstance(step, str):
                steps.append(
                    self._step(step) if self.names is None or step in self.names else f".<name {_ordinal(value, step)}>"
                )
                value = value.get(step)
            elif isinstance(value, list | tuple) and isinstance(step, int) and step < len(value):
                steps.append(f"[{step}]")
                value = value[step]
        if len(steps) > _MOST_STEPS:
            steps[1 : 1 - _MOST_STEPS] = ["…"]
        return "".join(steps), value

    def _step(self, name: str) -> str:
        return f".{name}" if name.isprintable() and len(name) <= _SHOWN else f".{_cut(name)!r}"


def names_in(schema: Any) -> frozenset[str]:
    """Return every name of a member in a schema."""
    found, waiting = set[str](), [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict):
            properties = node.get("properties")
            found.update(properties if isinstance(properties, dict) else ())
            waiting.extend(node.values())
    return frozenset(found)


def _near(name: str, known: list[str]) -> str | None:
    import difflib  # needed after a mistake only

    return next(iter(difflib.get_close_matches(name, islice(known, _MOST_COMPARED), n=1)), None)


def _asked(error: ValidationError) -> str:
    """Return what the schema requires, as the rest of a sentence about the value."""
    kind, data = error.kind.name, error.kind.as_dict()
    if kind in _LIMITS:
        return f"must {_limit(kind, data['limit'])}"
    if kind in _WORDS:
        return f"must {_WORDS[kind](data)}"
    return _OTHERS.get(kind, f"does not fit {kind!r} of its schema")


def _limit(kind: str, limit: Any) -> str:
    before, after = _LIMITS[kind]
    return f"{before} {_json(limit)}{after[:-1] if limit == 1 else after}"


def _pattern(data: Mapping[str, Any]) -> str:
    if "pattern" in data:
        return f"match the pattern {_cut(data['pattern'])!r}"
    return "match a pattern, for which it is too long or too repetitive"


def _options(data: Mapping[str, Any]) -> str:
    options = data["options"]
    return f"be one of {_listed([_json(option) for option in options[:_MOST_OPTIONS]], len(options))}"


def _is_type_error(error: ValidationError, depth: int) -> bool:
    return error.kind.name == "type" and len(error.instance_path) == depth


def _types(types: list[str]) -> str:
    names = [_TYPES.get(name, name) for name in sorted(types, key="null".__eq__)]
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    for types, name in _KINDS:
        if isinstance(value, types):
            return name
    return "null"


def _ordinal(value: Mapping[str, Any], name: str) -> int:
    return next((number for number, each in enumerate(value, 1) if each == name), 0)


def _listed(texts: list[str], count: int | None = None) -> str:
    count = len(texts) if count is None else count
    shown = ", ".join(texts[:_MOST_OPTIONS])
    return f"{shown} and {count - _MOST_OPTIONS} more" if count > _MOST_OPTIONS else shown


def _json(value: Any) -> str:
    try:
        return _cut(json.dumps(value, ensure_ascii=False, default=str))
    except ValueError:
        return "a very large number"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "type": lambda data: f"be {_types(data['types'])}",
    "enum": _options,
    "const": lambda data: f"be {_json(data['expected_value'])}",
    "pattern": _pattern,
    "multipleOf": lambda data: f"be a multiple of {_json(data['multiple_of'])}",
}


class SchemaWrong(ValueError):
    """A schema that nothing can be checked against. The text, a clause, says why."""


def _validator(schema: dict[str, Any], text: str, states: int) -> Validator:
    name = schema.get("$schema")
    size = _BYTES_OF_ANY + _BYTES_A_STATE * states  # so that none can be larger than what it was counted for
    make = _DRAFTS.get(name.rstrip("#"), Draft202012Validator) if isinstance(name, str) else Draft202012Validator
    try:
        try:
            return _made(make, schema, RegexOptions(size_limit=size, dfa_size_limit=_MOST_OF_A_CACHE))
        except ValidationError:
            # Patterns that look ahead or back need another engine, which is given up soon when it tries too much.
            if not re.search(BACKTRACKING, text):
                raise
            tracking = FancyRegexOptions(backtrack_limit=_MOST_TRIES, size_limit=size, dfa_size_limit=_MOST_OF_A_CACHE)
            return _made(make, schema, tracking)
    except ValidationError as exc:
        raise SchemaWrong(_why_wrong(exc, schema)) from None
    except ValueError:
        raise SchemaWrong("it is nested too deep") from None


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
            return self._validator.is_valid(value)
        except ValueError:  # of a Python type that the validator does not know, such as a subclass of `str`
            return self._fits_as_json(value)
        except BaseException as exc:
            if not _is_defect(exc):
                raise
            return self._fits_as_json(value)

    def price(self, value: Any, *, values: int, most: int = MOST_UNITS) -> int | None:
        """Units of 10 ns, at most, to check it once; `None` if it may take longer than `most`, or has more `values`."""
        if self.is_light and is_small(value):
            return WEIGHT_OF_SMALL * _LIGHT
        load = load_of(value, most=values)
        if load is None or (units := load.price(self.effort)) > most:
            return None
        units += price_of_patterns(self.effort, value, most=most)
        return units if units <= most else None

    @cached_property
    def is_light(self) -> bool:
        """Whether any small value surely costs little to check."""
        return max(self.effort.prices) <= _LIGHT and not self.effort.patterns and not self.effort.compares_items

    def why_not(self, value: Any, root: str) -> str:
        """Return what is wrong with an invalid value, as sentences; `root` is its name in them."""
        words = FaultWords(root, self._document.root, self._names)
        return words.text(self._errors(value), value) or f"What is in {root} does not fit the tool's schema."

    @cached_property
    def outline(self) -> Outline | None:
        """Return what surely holds at each place of a value, as the schema says."""
        return outline_of(self._document)

    @cached_property
    def takes_small(self) -> bool:
        """Return whether `fits` is the only check that a small value needs."""
        return self.is_light and not self.has_defaults

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
        """Return the validator finds all errors at once, and copies into each what it is about: not of everything at once."""
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
    """Return the schema as JSON. Raises `SchemaWrong` for one that has no such text, or too long a one."""
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


def _made(make: type[Validator], schema: dict[str, Any], patterns: RegexOptions | FancyRegexOptions) -> Validator:
    # Formats are annotations in draft 2020-12, and modules differ in what they take for a date.
    return _guarded(lambda: make(schema, offline=True, validate_formats=False, pattern_options=patterns))


def _why_wrong(exc: ValidationError, schema: dict[str, Any]) -> str:
    if exc.kind.name in {"format", "pattern"}:
        return f"its pattern {_shown(str(exc.instance))} cannot be used"
    text = FaultWords("schema", schema, names=None).text([exc], schema)
    return text.removesuffix(".") if exc.kind.name != "$ref" else _shown(exc.message)


def _guarded(function: Callable[..., T], *args: Any) -> T:
    """Call the function. A defect of the validator, which is no `Exception` in Python, must fail only this call."""
    try:
        return function(*args)
    except Exception:
        raise
    except BaseException as exc:
        if not _is_defect(exc):
            raise
        raise ValueError("the validator has failed") from exc


def _is_defect(error: BaseException) -> bool:
    """Return whether the validator itself has failed."""
    return type(error).__name__ == "PanicException"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LOCATIONS_SHOWN else f"{text[:_LOCATIONS_SHOWN]}…")


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
    """Return the index of an item that is wrong by itself, found by halves; of any, if there is none.

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
