"""Compiles untrusted regular expressions with RE2, which takes linear time on any text."""

from types import ModuleType
from typing import Any

_MOST_MEMORY = 2**20  # bytes: some thousand characters that are each any letter


def compiled(pattern: bytes, *, extra: str, is_latin: bool = False) -> Any:
    """Compile an RE2 for bytes of UTF-8, or of Latin-1, where each character is a byte.

    Raises `ValueError` with a reason that continues a sentence about the pattern's owner; `extra` of the distribution
    has RE2.
    """
    re2 = _re2(extra)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    if is_latin:
        options.encoding = re2.Options.Encoding.LATIN1
    try:
        return re2.compile(pattern, options)
    except re2.error as exc:
        reason = exc.args[0].decode("utf-8", "replace") if exc.args and isinstance(exc.args[0], bytes) else str(exc)
        raise ValueError(f"its pattern cannot be matched in linear time: {reason}") from exc


def _re2(extra: str) -> ModuleType:
    try:
        import re2  # an extra: few agents need it
    except ImportError as exc:
        raise ValueError(f"its pattern needs RE2: install 'toolfleet[{extra}]'") from exc
    return re2  # type: ignore[no-any-return] # it ships no types
