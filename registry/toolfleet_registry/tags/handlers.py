"""Names what runs when a tag's tool is called: a module's tool, or a function that a worker can import."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.errors import InvalidToolName


@dataclass(frozen=True, slots=True)
class Handler:
    """Exactly one of them: the `tool` of a module (`module.method`), or the import `path` of a function."""

    tool: str | None = None
    path: str | None = None


def handler_of(value: str | Callable[..., Any], *, is_here: bool = False) -> Handler:
    """Parse a tool's handler. Raises `ValueError` if no worker could run it; or, if it `is_here`, no process at all."""
    if not isinstance(value, str):
        return Handler(path=path_of(value, is_here=is_here))
    if ":" in value:
        module, _, name = value.partition(":")
        if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"its handler {value!r} is no import path of the form 'package.module:function'")
        return Handler(path=value)
    try:
        return Handler(tool=str(ToolName.parse(value)))
    except InvalidToolName:
        raise ValueError(
            f"its handler {value!r} is neither a module's tool ('module.method') nor 'package.module:function'"
        ) from None


def path_of(function: Callable[..., Any], *, is_here: bool = False) -> str:
    """Return `package.module:function`, by which a worker finds a function. Raises `ValueError` if it could not.

    A function that `is_here` runs in this process only, so that no worker has to find it.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        reason = f"its handler, a {type(function).__name__}, is no function that a worker could import"
        raise ValueError(reason)  # noqa: TRY004 - one kind of error for any fault of a tool
    if inspect.isclass(function) or not callable(function):
        raise ValueError(f"its handler {name!r} is no function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"its handler {name!r} yields; a tool returns one result")
    if is_here:
        return f"{module}:{name}"
    if module == "__main__":
        raise ValueError(f"its handler {name!r} is in the program that was started; put it into a module of its own")
    if getattr(sys.modules.get(module), name, None) is not function:  # also `<lambda>`, `f.<locals>.g` and `Class.f`
        raise ValueError(
            f"its handler {name!r} cannot travel to a worker: it must be a function that {module!r} has under this name, "
            "no closure, lambda, method or nested function"
        )
    return f"{module}:{name}"
