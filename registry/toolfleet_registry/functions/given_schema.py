"""Reads a function whose arguments' schema is given: it takes these by name, or any, as a bridge to other servers does."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolfleet_registry.functions.docstrings import DocstringWords
from toolfleet_registry.functions.signature import USER, Signature


@dataclass(frozen=True, slots=True)
class OpenSignature(Signature):
    """The signature of a function with `**arguments`, which takes anything that its schema allows."""

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """As they came: the schema is all there is to hold them against."""
        return dict(arguments)


def signature_of_given(
    function: Callable[..., Any], words: DocstringWords, given: Any, *, is_context: Callable[[str, Any], bool]
) -> Signature:
    """Read a function that is to have this schema. Raises `TypeError` or `ValueError` where they do not agree."""
    name = getattr(function, "__name__", type(function).__name__)
    schema = _plain(name, given)
    taken = inspect.signature(function).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in taken):
        signature = Signature.of(function, words, is_context=is_context)
        _compare(name, schema, signature.schema)
        return replace(signature, schema=schema)
    read = Signature.of(function, DocstringWords("", {}), is_context=is_context, is_open=True)
    if read.names:
        own = min(read.names.values())
        raise TypeError(
            f"{name}() takes {own!r} beside its **arguments; with a schema that is given it takes one or the other."
        )
    filled = {each for each in (read.context, USER if read.user else None) if each is not None}
    if clash := filled & schema["properties"].keys():
        raise ValueError(f"The input_schema of {name}() has {min(clash)!r}, which is filled in.")
    names = {each: each for each in schema["properties"]}
    return OpenSignature(read.model, names, schema, read.context, read.user, read.needs_user)


def _plain(name: str, given: Any) -> dict[str, Any]:
    """A copy, of an object with properties."""
    if not isinstance(given, dict):
        raise TypeError(f"The input_schema of {name}() is no dictionary.")
    try:
        schema: dict[str, Any] = {"type": "object", "properties": {}, **json.loads(json.dumps(given, allow_nan=False))}
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(f"The input_schema of {name}() is no JSON: {exc}.") from exc
    if schema["type"] != "object" or not isinstance(schema["properties"], dict):
        raise ValueError(f"The input_schema of {name}() is not that of an object.")
    return schema


def _compare(name: str, schema: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Check that each property is a parameter, and that each parameter without a default is required."""
    if unknown := schema["properties"].keys() - own["properties"].keys():
        raise ValueError(f"The input_schema of {name}() has {min(unknown)!r}, which is no parameter of it.")
    if missing := set(own.get("required", ())) - set(schema.get("required", ())):
        raise ValueError(f"The input_schema of {name}() does not require {min(missing)!r}, which has no default.")
