"""Validates a call's arguments, and a module's result, by the tool's schemas. No text says what a value is."""

import copy
import json
import math
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, TypeAlias

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.schemas.arguments import MAX_VALUES
from toolfleet_registry.schemas.checker import MOST_UNITS, Checker, SchemaWrong, compiled, text_of
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.schemas.effort import Outline, Path, values_in, with_changes
from toolfleet_registry.schemas.subschemas import Schema
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

_MOST_SCHEMAS = 20_000  # that are kept compiled, with all that are in them: 30 MB of usual ones, 80 MB of the worst
_MOST_VERDICTS = 50_000  # that are known: 10 MB, twice as much if all are faults
_MOST_NAMES = 2 * MAX_VALUES  # values and names of members that arguments can have
_MOST_OF_A_RESULT = 100_000  # values and names: to count more takes some 10 ms

_Compiled: TypeAlias = Checker | str
"""A checker, or what is wrong with the schema."""

_TOO_MUCH = "Arguments are too large, or nested too deep, to be checked against the tool's schema."

_MOST_VALUES = 10_000  # which takes some 15 ms
_LONGEST_NUMBER = 40  # characters: a longer one is not meant as a number

_NUMBERS = frozenset({"integer", "number"})
_TEXTS = frozenset({"string", "null"})
_INTEGER = r"-?(?:0|[1-9][0-9]*)"
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"

_MOST_DEFAULTS = 2_000  # places of one call; with more none is filled in, for a small call must not become a huge one
_MOST_PLACES = 5_000  # objects and arrays that are looked into: some 10 ms
_MOST_CHARACTERS = 200_000  # of all that is filled in, as JSON
_MOST_TRIED = 50  # one by one, if not all fit together

Filling = list[tuple[Path, Any]]
"""What is to be filled in: paths and values."""


@dataclass(slots=True)
class Checked:
    """A call's arguments with their defaults, or what is wrong with them."""

    arguments: dict[str, Any] | None
    fault: str | None = None


def input_checker(tool: ToolDefinition) -> Callable[[], Checker | None]:
    """Return a function that returns the tool's compiled input schema, as long as that is kept."""
    checker = _inputs.checker(tool)
    return _no_checker if isinstance(checker, str) else weakref.ref(checker)


def _no_checker() -> None:
    """Stand for a schema that cannot be used."""


def checked(
    tool: ToolDefinition,
    arguments: dict[str, Any],
    *,
    coerces_numbers: bool = False,
    are_small: bool = False,
    checker: _Compiled | None = None,
    times: int = 1,
) -> Checked:
    """Hold a call's arguments against the tool's input schema, and fill in its defaults.

    The arguments are JSON already: see `arguments.fault_in`. They are never changed; without a default to fill in they
    come back as they are. `coerces_numbers`: texts that are clearly numbers are taken for them where numbers are wanted.
    `are_small`: whether they are known to be small values. `checker`: that of the tool, if it is known. `times`: how many
    times the usual effort may be made, where no event loop waits for it.
    """
    if checker is None:
        checker = _inputs.checker(tool)
    if isinstance(checker, str):
        return Checked(None, f"Tool {tool.name!r} is closed: {checker}.")
    names, units = _MOST_NAMES * times, MOST_UNITS * times
    if not (are_small and checker.is_light) and checker.price(arguments, values=names, most=units) is None:
        return Checked(None, _TOO_MUCH)
    if coerces_numbers and checker.outline and not checker.fits(arguments):
        arguments = _with_numbers(checker, arguments)
    if checker.has_defaults and checker.outline and (filling := _filling_for(checker.outline, arguments)):
        full = filled(arguments, filling, checker.fits, partial(_tries, checker, times))
        if full is not None:
            return Checked(full)
    elif checker.fits(arguments):
        return Checked(arguments)
    return Checked(None, checker.why_not(arguments, "arguments"))


def checked_with(context: Mapping[str, Any], tool: ToolDefinition, arguments: dict[str, Any], **effort: Any) -> Checked:
    """Return the arguments with all that is `context`; where the tool's schema has no room for that, with what it names at its top.

    `effort`: as `checked`.
    """
    whole = checked(tool, {**arguments, **context}, **effort)
    if whole.arguments is not None or not context:
        return whole
    properties = {} if tool.input_schema is None else tool.input_schema.get("properties")
    names = {*(properties if isinstance(properties, dict) else ()), *(parameter.name for parameter in tool.parameters)}
    named = {name: value for name, value in context.items() if name in names}
    part = checked(tool, {**arguments, **named}, **effort)
    rest = {name: value for name, value in context.items() if name not in named}
    return part if part.arguments is None else Checked({**part.arguments, **rest})


def takes_text(tool: ToolDefinition, name: str) -> bool:
    """Return whether an argument of that name surely has to be a text, or null."""
    checker = _inputs.checker(tool)
    outline = None if isinstance(checker, str) or checker.outline is None else checker.outline.member(name)
    return outline is not None and any("string" in types <= _TEXTS for types in _type_sets(outline.schemas))


def result_fault(tool: ToolDefinition, result: Any) -> str | None:
    """Return what is wrong with a module's result by the tool's output schema; `None` if nothing is, or there is no such schema.

    Fails open, with a warning, for a schema that cannot be used and for a result too large to be checked in time: the
    effect has happened, and the result is of more use than none.
    """
    if tool.output_schema is None:
        return None
    checker = _outputs.checker(tool)
    if isinstance(checker, str):
        _log.warning("result_not_checked", tool=tool.name, reason=checker)
        return None
    if checker.price(result, values=_MOST_OF_A_RESULT) is None:
        _log.warning("result_not_checked", tool=tool.name, reason="it is too large to be checked in time")
        return None
    return None if checker.fits(result) else checker.why_not(result, "result")


def schema_fault(tool: ToolDefinition) -> str | None:
    """Return what is wrong with the tool's own schemas, as a clause, so that it cannot be used; `None` if nothing is.

    Each content is compiled for it once, and not kept: only the fault is remembered. Takes 50 ms at most, 20 µs for a
    known content.
    """
    for side in (_inputs,) if tool.output_schema is None else (_inputs, _outputs):
        digest = side.digest(tool)
        if isinstance(digest, str):
            return digest
        fault = _verdicts.find(digest)
        if isinstance(fault, _Unknown):
            fault = _verdicts.put(digest, side.compiled(tool))
        if fault is not None:
            return fault
    return None


def _tries(checker: Checker, times: int, arguments: dict[str, Any]) -> int:
    """Return how often such arguments may be checked without taking longer than one check may."""
    units = MOST_UNITS * times
    price = checker.price(arguments, values=_MOST_NAMES * times, most=units)
    return 0 if price is None else units // max(1, price)


def _with_numbers(checker: Checker, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with coerced numbers.

    Defaults are still to come, so they need not be valid yet; if they are not then, the fault is about this.
    """
    changed = _coerced(checker.outline, arguments) if checker.outline else None
    return arguments if changed is None else changed


class _CompiledSchemas:
    """Compiled schemas by the digest of their text; the one that was not used for longest goes first."""

    def __init__(self) -> None:
        self._checkers: OrderedDict[bytes, _Compiled] = OrderedDict()
        self._schemas = 0
        self._lock = threading.Lock()  # a catalog looks at many schemas in a thread

    def find(self, digest: bytes) -> _Compiled | None:
        with self._lock:
            found = self._checkers.get(digest)
            if found is not None:
                self._checkers.move_to_end(digest)
            return found

    def put(self, digest: bytes, checker: _Compiled) -> None:
        with self._lock:
            if digest in self._checkers:
                return
            self._checkers[digest] = checker
            self._schemas += _size(checker)
            while self._schemas > _MOST_SCHEMAS:
                self._schemas -= _size(self._checkers.popitem(last=False)[1])


class _Unknown(Enum):
    """A digest that was not checked yet."""

    YET = "not looked at yet"


class _Verdicts:
    """The faults of the schemas of a digest, or `None`: known for many more than are kept compiled."""

    def __init__(self) -> None:
        self._faults: dict[bytes, str | None] = {}
        self._lock = threading.Lock()

    def find(self, digest: bytes) -> str | _Unknown | None:
        return self._faults.get(digest, _Unknown.YET)

    def put(self, digest: bytes, found: _Compiled) -> str | None:
        fault = found if isinstance(found, str) else None
        with self._lock:
            self._faults[digest] = fault
            if len(self._faults) > _MOST_VERDICTS:
                del self._faults[next(iter(self._faults))]
        return fault


class _Side:
    """The input schemas of all tools, or their output schemas."""

    def __init__(self, what: str, schema_of: Callable[[ToolDefinition], Mapping[str, Any]]) -> None:
        self._what = what
        self._schema_of = schema_of
        self._digests: dict[int, tuple[weakref.ref[ToolDefinition], bytes]] = {}

    def checker(self, tool: ToolDefinition) -> _Compiled:
        known = self._digests.get(id(tool))
        if known is not None and known[0]() is tool and (found := _compiled_schemas.find(known[1])) is not None:
            return found
        return self._new(tool)

    def digest(self, tool: ToolDefinition) -> bytes | str:
        """Return the digest of the tool's schema, or what is wrong with it."""
        known = self._digests.get(id(tool))
        if known is not None and known[0]() is tool:
            return known[1]
        try:
            text = text_of(self._schema_of(tool))
        except SchemaWrong as exc:
            return f"its {self._what} schema is wrong: {exc}"
        except RecursionError:
            return f"its {self._what} schema is wrong: it is nested too deep"
        digest = sha256(f"{self._what} {text}".encode("utf-8", "surrogatepass")).digest()
        key = id(tool)
        self._digests[key] = (weakref.ref(tool, lambda _: self._digests.pop(key, None)), digest)
        return digest

    def _new(self, tool: ToolDefinition) -> _Compiled:
        digest = self.digest(tool)
        if isinstance(digest, str):
            return digest
        found = _compiled_schemas.find(digest)
        if found is None:
            fault = _verdicts.find(digest)
            found = fault if isinstance(fault, str) else self.compiled(tool)
            _verdicts.put(digest, found)
            _compiled_schemas.put(digest, found)
        return found

    def compiled(self, tool: ToolDefinition) -> _Compiled:
        """Compile the schema, even if a compiled one is cached."""
        schema = self._schema_of(tool)
        if self is _inputs and not _takes_objects(schema):
            return "its input schema is wrong: its type must be 'object'"
        try:
            return compiled(schema)
        except SchemaWrong as exc:
            return f"its {self._what} schema is wrong: {exc}"


def _takes_objects(schema: Mapping[str, Any]) -> bool:
    types = schema.get("type")
    return types == "object" or (isinstance(types, list) and "object" in types)


def _size(checker: _Compiled) -> int:
    """Return the size in schemas: 200 characters, or 20 states of a pattern, take as much memory as one; any pattern that of 16, in use."""
    if isinstance(checker, str):
        return 1
    patterns = checker.patterns.states // 20 + 16 * checker.patterns.count
    return 1 + checker.effort.schemas + patterns + len(checker.text) // 200


_compiled_schemas = _CompiledSchemas()
_verdicts = _Verdicts()
_inputs = _Side("input", input_schema)
_outputs = _Side("output", lambda tool: {} if tool.output_schema is None else tool.output_schema)


def _coerced(outline: Outline, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Return a copy with numbers for texts that are clearly numbers, where a number is wanted and no text is allowed.

    `None` if there are none, or more than 10,000 values to look at. "5", "-0.5" and "1e3" are clearly numbers; " 5", "05", "1,000", "+1" and "0x10" are not.
    """
    places = list(islice(values_in(outline, arguments, leaves=True), _MOST_VALUES + 1))
    if len(places) > _MOST_VALUES:
        return None
    changes = [
        (path, number)
        for path, inner, value in places
        if isinstance(value, str) and path and (number := _number(value, _wanted(inner.schemas))) is not None
    ]
    return with_changes(arguments, changes) if changes else None


def _number(text: str, wanted: frozenset[str]) -> int | float | None:
    if len(text) > _LONGEST_NUMBER or not wanted:
        return None
    if re.fullmatch(_INTEGER, text):
        return int(text)
    if "number" in wanted and re.fullmatch(_NUMBER, text):
        number = json.loads(text)
        return number if math.isfinite(number) else None
    return None


def _wanted(schemas: Iterable[Schema]) -> frozenset[str]:
    """Return the kinds of number that all of them take; none where one of them takes a text."""
    wanted = _NUMBERS
    has_types = False
    for types in _type_sets(schemas):
        wanted, has_types = _narrowed(wanted, types), True
    return wanted if has_types else frozenset()


def _type_sets(schemas: Iterable[Schema]) -> Iterator[frozenset[str]]:
    """Yield the types that a value may have, by each of the schemas that say so."""
    for schema in schemas:
        for keyword in ("anyOf", "oneOf"):
            if isinstance(branches := schema.get(keyword), list):
                alternatives = [_types(branch) for branch in branches]
                if all(alternatives):
                    yield frozenset[str]().union(*alternatives)
        if types := _types(schema):
            yield types


def _narrowed(wanted: frozenset[str], types: frozenset[str]) -> frozenset[str]:
    if "string" in types:
        return frozenset()
    return wanted & (types | {"integer"} if "number" in types else types)


def _types(schema: Any) -> frozenset[str]:
    types = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(types, str):
        return frozenset({types})
    return frozenset(map(str, types)) if isinstance(types, list) else frozenset()


def _filling_for(outline: Outline, arguments: dict[str, Any]) -> Filling:
    """Return the defaults that these arguments lack; none for arguments with more than 5,000 objects and arrays.

    Only into objects that are there: a missing object is made by its own default or not at all. A default in an
    alternative, or next to a different one for the same place, is ignored.
    """
    found, characters = Filling(), 0
    for seen, (path, inner, value) in enumerate(values_in(outline, arguments, leaves=False)):
        if seen >= _MOST_PLACES:
            return []
        if not isinstance(value, dict):
            continue
        for name, default in inner.defaults().items():
            if name not in value:
                characters += len(json.dumps(default, default=str)) if isinstance(default, dict | list | str) else 0
                if len(found) >= _MOST_DEFAULTS or characters > _MOST_CHARACTERS:
                    return []
                found.append(((*path, name), default))
    return found


def filled(
    arguments: dict[str, Any],
    filling: Filling,
    fits: Callable[[dict[str, Any]], bool],
    affords: Callable[[dict[str, Any]], int],
) -> dict[str, Any] | None:
    """Return the arguments with all of it; if that does not fit, with what of it fits; `None` if they fit in no way.

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
    """Return the arguments without the one default that does not fit, if the others then do."""
    for index in range(min(len(filling), _MOST_TRIED)):
        tried = _with(arguments, [*filling[:index], *filling[index + 1 :]])
        if fits(tried):
            return tried
    return None


def _with(arguments: dict[str, Any], filling: Filling) -> dict[str, Any]:
    """Return the arguments filled with new copies each time: a call must not change the schema, nor another call."""
    changes = ((path, copy.deepcopy(value) if isinstance(value, dict | list) else value) for path, value in filling)
    return with_changes(arguments, changes)
