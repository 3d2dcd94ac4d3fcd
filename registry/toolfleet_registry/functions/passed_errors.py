"""Words an error of the Model Context Protocol as the result of a failed call, and finds it there: `{"mcp_error": {"code", "message", "data"}}`.

A server that answers a call so has not said that its tool failed, but that the call itself was none for it. Clients of the protocol want
to know which.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_FIELD: Final = "mcp_error"
_MOST_DATA = 2**14  # bytes
_LONGEST_MESSAGE = 4000  # characters
_LARGEST_CODE = 2**31


@dataclass(frozen=True, slots=True)
class PassedError:
    """A server's error: its code and message, and its data, if there are any."""

    code: int
    message: str
    data: Any = None

    def facts(self) -> dict[str, Any]:
        """As the protocol has it. Data that are too large, or no JSON, are left out."""
        error: dict[str, Any] = {"code": self.code, "message": self.message[:_LONGEST_MESSAGE]}
        return {**error, "data": self.data} if _is_small(self.data) else error

    def worded(self) -> dict[str, Any]:
        """As the result of a failed call."""
        return {_FIELD: self.facts()}


def passed_error(result: object) -> PassedError | None:
    """Return the error in a failed call's result; `None` if there is none, or it is invalid."""
    found = result.get(_FIELD) if isinstance(result, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    code, message = found.get("code"), found.get("message")
    if type(code) is not int or abs(code) > _LARGEST_CODE or not isinstance(message, str):
        return None
    return PassedError(code, message, found.get("data"))


def _is_small(data: object) -> bool:
    try:
        return data is not None and len(json.dumps(data)) <= _MOST_DATA
    except (TypeError, ValueError, RecursionError):
        return False
