"""Finds the parameter of a function that gets the agent's context: by its annotation, by its name, or as the only one there is.

Another may get the call's: the `Context` that functions of modules have, too.
"""

import re
import typing
from collections.abc import Callable, Container, Mapping
from inspect import Parameter
from typing import Any

from toolfleet_registry.contracts.tool_context import ToolContext
from toolfleet_registry.functions.call_context import Context
from toolfleet_registry.functions.signature import function_behind

_NAME = "context"
_NAMED = re.compile(r"\bToolContext\b")


def is_context(name: str, hint: Any) -> bool:
    """Whether a parameter with this annotation gets a `ToolContext`: also as one that may be `None`, or as text."""
    if is_call_context(hint):
        return False
    if isinstance(hint, str):
        return name == _NAME or _NAMED.search(hint) is not None
    return name == _NAME or ToolContext in (hint, *typing.get_args(hint))


def is_call_context(hint: Any) -> bool:
    """Whether a parameter with this annotation gets the call's `Context`: also as one that may be `None`."""
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    return Context in (bare, *typing.get_args(bare))


def call_context_of(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that gets the call's context, `None` if there is none. Raises `ValueError` if there are two."""
    found = [name for name, hint in hints_of(function).items() if name != "return" and is_call_context(hint)]
    if len(found) > 1:
        raise ValueError(f"{function.__name__!r} has two contexts, {found[0]!r} and {found[1]!r}")
    return found[0] if found else None


def context_of(
    function: Callable[..., Any], parameters: Mapping[str, Parameter], arguments: Container[str]
) -> str | None:
    """The name of the parameter that gets the context, `None` if there is none. Raises `ValueError` if there are two.

    One that is alone, has no annotation and no name of the `arguments` is it, whatever it is called.
    """
    hints = hints_of(function)
    found = [name for name in parameters if name not in arguments and is_context(name, hints.get(name))]
    if len(found) > 1:
        raise ValueError(f"{function.__name__!r} has two contexts, {found[0]!r} and {found[1]!r}")
    if found:
        return found[0]
    names = list(parameters)
    return names[0] if len(names) == 1 and names[0] not in arguments and names[0] not in hints else None


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations; as they are written, where their names are known to type checkers only."""
    behind = function_behind(function)
    try:
        return typing.get_type_hints(behind, include_extras=True)
    except (NameError, TypeError, SyntaxError):
        return dict(getattr(behind, "__annotations__", {}))
