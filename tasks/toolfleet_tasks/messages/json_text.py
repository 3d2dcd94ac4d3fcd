"""Writes messages as one JSON string, which is all that Celery and kombu see, and reads them, with their version.

A message says in `v` which version a reader needs, and nothing if the first is enough: so a newer sender's messages are
read by older workers as long as they use nothing new. Kombu's own JSON decoder turns a dictionary of the shape
{"__type__": …} into a Python object, or raises. Arguments and results are user data and must pass unchanged, so no
decoder but this one ever parses them.
"""

import functools
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import from_json

from toolfleet_registry.contracts import Message, Since

M = TypeVar("M", bound=Message)

VERSION = 6
"""The newest version of messages and records that this code reads, and writes where it must."""
READS_APART = 5
"""The first version whose workers read a call whose arguments stand apart; see `Seal.seal_apart`."""
_FIRST = 1  # the version of what says none


class NewerMessage(ValueError):
    """A message was written for readers of a newer version; `version` is the one that it needs, if it says so."""

    def __init__(self, version: int | None) -> None:
        self.version = version
        needed = "a newer version" if version is None else f"version {version}"
        super().__init__(f"it needs {needed} of Toolfleet's messages, and this process reads {VERSION}")


# pydantic's own JSON would write null for NaN. The only things here that JSON does not have are sets of names.
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=sorted).encode


def dump(message: Message) -> str:
    """Return a message as ASCII JSON; a lone surrogate in a text stays the escape that it came as.

    Raises `ValueError` for NaN and infinities, which are no JSON.
    """
    text = _written(message)
    version = version_of(message)
    return text if version == _FIRST else f'{{"v":{version},{text[1:]}'


def dump_without(message: Message, name: str, more: str = "") -> str:
    """Return a message as `dump` does, for readers of `READS_APART`: without the field `name`, and with `more` members."""
    version, values = READS_APART, message.__dict__
    # Nearly every message has none of these, and calls no function here.
    for field, unset in _AFTER_APART[message.__class__]:
        if values[field] != unset:
            version = max(version_of(message), READS_APART)
    return f'{{"v":{version},{more}{_written(message, {name})[1:]}'


class _FieldsAfterApart(dict[type[Message], tuple[tuple[str, object], ...]]):
    """The fields of each kind of message that came after `READS_APART`, or have such fields in them, each with its default."""

    def __missing__(self, kind: type[Message]) -> tuple[tuple[str, object], ...]:
        later = _later_fields(kind)
        inner = {
            name: kind.model_fields[name].get_default(call_default_factory=True)
            for name in later.inner
            if any(self[each] for each in _types_in(kind.model_fields[name].annotation))
        }
        own = {name: unset for name, since, unset in later.fields if since > READS_APART}
        self[kind] = found = tuple({**inner, **own}.items())
        return found


_AFTER_APART = _FieldsAfterApart()


def version_of(message: Message) -> int:
    """Return the version that a reader of this message needs."""
    later = _later_fields(type(message))
    version, values = _FIRST, message.__dict__  # pydantic's models make several lookups of an attribute
    if later.pick(values) != later.unset:
        version = max(since for name, since, unset in later.fields if values[name] != unset)
    for name in later.inner:
        value = values[name]
        if isinstance(value, Message):
            version = max(version, version_of(value))
        elif value and isinstance(value, tuple):
            version = max(version, *(version_of(part) for part in value if isinstance(part, Message)), _FIRST)
    return version


def load(kind: type[M], text: str, make: Callable[[Any], M] | None = None) -> M:
    """Read what `dump` wrote. Raises `NewerMessage`, and `ValueError` (pydantic's among them) for anything else.

    `make` validates what was read; by default as a `kind`.
    """
    make = make or kind.__pydantic_validator__.validate_python
    try:
        try:
            # To look each text up among those seen before takes longer than to make it; names are worth it.
            read: Any = from_json(text, allow_inf_nan=False, cache_strings="keys")
        except ValueError:
            read = json.loads(text)  # takes a lone surrogate
        if isinstance(read, dict) and "v" in read:
            version = read.pop("v")
            if not isinstance(version, int) or version > VERSION:
                raise NewerMessage(version if isinstance(version, int) else None)
        try:
            return make(read)
        except ValidationError as exc:
            errors = exc.errors(include_url=False, include_input=False)
            if any(error["type"] == "extra_forbidden" for error in errors):
                raise NewerMessage(None) from exc
            if not _levels_corrected(read, errors):
                raise
            return make(read)
    except RecursionError as exc:  # thousands of brackets
        raise ValueError("nested too deeply") from exc


def _levels_corrected(read: Any, errors: Sequence[Any]) -> bool:
    """Correct a caller's unknown permission to guest, and return whether that was all that is wrong.

    Agents of earlier versions accepted any word, and have written it into their calls and jobs.
    """
    for error in errors:
        if error["type"] != "literal_error" or error["loc"][-1:] != ("permission",):
            return False
        caller = functools.reduce(lambda node, step: node[step], error["loc"][:-1], read)
        if not isinstance(caller["permission"], str):
            return False
        caller["permission"] = "guest"
    return True


def _written(message: Message, without: set[str] | None = None) -> str:
    try:
        text = message.model_dump_json(exclude_defaults=True, exclude=without)
    except ValueError:  # a lone surrogate
        text = ""
    # A third of the time of the other way, which is for what pydantic would write differently: null for NaN is among it.
    if text.isascii() and text and "null" not in text:
        return text
    return _encode(message.model_dump(exclude_defaults=True, exclude=without))


@dataclass(frozen=True, slots=True)
class _LaterFields:
    """The fields that came after the first version: each one's name, its version and its default; and the fields with such messages in them.

    `pick` takes the values of all of them at once, which are `unset` in nearly every message: one lookup each costs
    four times that.
    """

    fields: tuple[tuple[str, int, object], ...]
    inner: tuple[str, ...]
    pick: Callable[[Mapping[str, object]], object]
    unset: object


@functools.cache
def _later_fields(kind: type[Message]) -> _LaterFields:
    later = tuple(
        (name, mark.version, field.get_default(call_default_factory=True))
        for name, field in kind.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Since)
    )
    inner = tuple(name for name, field in kind.model_fields.items() if any(map(_is_later, _types_in(field.annotation))))
    pick = operator.itemgetter(*(name for name, _, _ in later)) if later else _nothing
    return _LaterFields(later, inner, pick, pick({name: unset for name, _, unset in later}))


def _nothing(_: Mapping[str, object]) -> None:
    """Pick no field."""


def _is_later(kind: type[Message]) -> bool:
    found = _later_fields(kind)
    return bool(found.fields or found.inner)


def _types_in(annotation: Any) -> Iterator[type[Message]]:
    if isinstance(annotation, type) and issubclass(annotation, Message):
        yield annotation
    for inner in get_args(annotation):
        yield from _types_in(inner)
