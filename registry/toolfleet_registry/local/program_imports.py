"""Imports the target of an import path, and reports why and in which line a program cannot be imported."""

import importlib
import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from toolfleet_registry.config.setting_sources import find_own_programs


class ProgramFault(ValueError):
    """A user's program cannot be imported, or is no tool; the message says where, and quotes no value of the program."""


def check_path(path: str) -> None:
    """Raise `ValueError` unless it has the form `package.module:name`."""
    module_name, _, name = path.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(f"{path!r} must have the form 'package.module:name'.")


def found_at(path: str, what: str) -> Any:
    """Import the target of an import path. Raises `ProgramFault`, also for any exception of the imported program."""
    check_path(path)
    module_name, _, name = path.partition(":")
    find_own_programs()
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, name, None)
    except BaseException as exc:  # also SystemExit: nothing that a program does at its import ends the process
        raise ProgramFault(f"{what}, {path!r}, cannot be imported: {_error_text(exc)}{_at(place_of(exc))}") from exc
    if found is None:
        place = getattr(module, "__file__", None)
        raise ProgramFault(f"{what}, {path!r}, cannot be found: {module_name!r} has no {name!r}{_at(place)}.")
    return found


def place_of(exc: BaseException) -> str | None:
    """`file, line n`, where the program failed: its own innermost line rather than one of a library's; `None` if none ran."""
    if isinstance(exc, SyntaxError) and exc.filename and os.path.exists(exc.filename):  # noqa: PTH110 - it may be any text
        return f"{exc.filename}, line {exc.lineno}"
    lines = [frame for frame in _frames(exc.__traceback__) if not _is_ours(frame.filename)]
    own = [frame for frame in lines if not frame.filename.startswith(_LIBRARIES)]
    last = (own or lines)[-1:]
    return f"{last[0].filename}, line {last[0].lineno}" if last else None


def place_of_function(function: Callable[..., Any]) -> str | None:
    """`file, line n`, where a function is defined; `None` for one that is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else f"{code.co_filename}, line {code.co_firstlineno}"


def _frames(tb: TracebackType | None) -> list[traceback.FrameSummary]:
    # A walk, and not a reading of the files: these may be anything.
    return [
        traceback.FrameSummary(frame.f_code.co_filename, number, frame.f_code.co_name, lookup_line=False)
        for frame, number in traceback.walk_tb(tb)
    ]


def _error_text(exc: BaseException) -> str:
    """Return the exception's type, and its message only if that names parts of programs: other messages may quote secrets."""
    kind = type(exc).__name__
    if isinstance(exc, SyntaxError):
        return f"{kind}: {exc.msg}"[:_MOST_SHOWN]
    return f"{kind}: {exc}"[:_MOST_SHOWN] if isinstance(exc, ImportError | NameError | AttributeError) else kind


def _at(place: str | None) -> str:
    return "" if place is None else f" ({place})"


def _is_ours(filename: str) -> bool:
    return filename == __file__ or filename.startswith(("<frozen ", os.path.dirname(importlib.__file__)))  # noqa: PTH120


_LIBRARIES = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_MOST_SHOWN = 300  # characters of foreign text in a reason
