"""Describes what is wrong with a value, for a model: where, and what the schema requires there.

It never repeats the value: no text, no number, and no name of a member that the schema does not have itself, for a
map's names are data. But an argument's own name, and one that is nearly the schema's, is a typing mistake, and is
named.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jsonschema_rs import ValidationError

MOST_FAULTS = 3
_MOST_CHARACTERS = 800  # of all faults together
_MOST_STEPS = 8
_MOST_OPTIONS = 10
_MOST_READ = 50  # faults; of more it is said that there are more
_SHOWN = 60  # characters of a name, a pattern, an allowed value
_MOST_COMPARED = 100  # names; comparing two takes some 20 µs, and the event loop waits
_SAYABLE = re.compile(r"[A-Za-z0-9_$@.-]{1,60}", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}", re.ASCII)  # names surely meant as an argument's


@dataclass(frozen=True, slots=True)
class FaultWords:
    """Speaks of one value, named `root` in the text, by its schema.

    `names`: those that stand in the schema; `None` if every name may be said.
    """

    root: str
    schema: Mapping[str, Any]
    names: frozenset[str] | None

    def text(self, errors: Iterable[ValidationError], value: Any) -> str:
        """The faults as sentences: at most three, and bounded in length."""
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
        """The names that may be said, with what was probably meant."""
        found = list[str]()
        for name in unexpected[:MOST_FAULTS]:
            near = _near(name, known) if _SAYABLE.fullmatch(name) else None
            if near is not None:
                found.append(f"{name!r} (did you mean {_cut(near)!r}?)")
            elif is_argument and _NAME.fullmatch(name):
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
_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "type": lambda data: f"be {_types(data['types'])}",
    "enum": _options,
    "const": lambda data: f"be {_json(data['expected_value'])}",
    "pattern": _pattern,
    "multipleOf": lambda data: f"be a multiple of {_json(data['multiple_of'])}",
}
_OTHERS: Mapping[str, str] = {
    "falseSchema": "is not allowed",
    "not": "must not be what its schema excludes",
    "uniqueItems": "must not have two equal items",
    "contains": "must have items of the kind, and as many, as its schema says",
    "unevaluatedItems": "must not have items that its schema does not have",
    "format": "must be of the format that its schema asks for",
}
