"""Digests the code of a function: another digest says that somebody has changed its file."""

import hashlib
import marshal
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any


def code_digest(function: Callable[..., Any]) -> str:
    """`sha256:` and 64 hex digits: of the files in which the function and what is wrapped around it are written.

    Where a file is not what runs, as it was changed after its import or rewritten by it, what runs counts too; where there is
    none, as in a console, that alone. What these files import does not count.
    """
    digest = hashlib.sha256()
    for code, module in _codes_of(function):
        source = _source_of(code, module)
        if source is not None:
            digest.update(hashlib.sha256(source).digest())
        if source is None or not _is_of(source, code):
            digest.update(hashlib.sha256(marshal.dumps(code)).digest())
    return f"sha256:{digest.hexdigest()}"


def _codes_of(function: Any) -> Iterator[tuple[CodeType, str]]:
    """The function's own, and that of each one that it is wrapped in."""
    layers = [function]
    while (inner := getattr(layers[-1], "__wrapped__", None)) is not None and inner not in layers:
        layers.append(inner)
    for layer in layers:
        code = getattr(layer, "__code__", None)
        if isinstance(code, CodeType):
            yield code, getattr(layer, "__module__", "")


def _source_of(code: CodeType, module: str) -> bytes | None:
    """What the file holds now, also in an archive; `None` if there is none."""
    read = getattr(getattr(sys.modules.get(module), "__loader__", None), "get_data", None)
    try:
        return None if read is None else bytes(read(code.co_filename))
    except (OSError, ImportError):
        return None


def _is_of(source: bytes, code: CodeType) -> bool:
    """Whether the file is what runs."""
    try:
        waiting = [compile(source, code.co_filename, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError):
        return False
    while waiting:
        each = waiting.pop()
        if each == code:
            return True
        waiting += [inner for inner in each.co_consts if isinstance(inner, CodeType)]
    return False
