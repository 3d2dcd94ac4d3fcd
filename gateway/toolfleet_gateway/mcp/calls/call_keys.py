"""Makes the idempotency key of a call from what a client says of it: the same intention, the same key."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

IDEMPOTENCY_KEY: Final = "toolfleet/idempotencyKey"
"""The name in a request's `_meta` under which a client names its intention."""

_TOOL_USE_ID: Final = "claudecode/toolUseId"  # Claude Code names each use of a tool so, and a repeat has the same
_NAMES = (IDEMPOTENCY_KEY, _TOOL_USE_ID)
_LONGEST = 256  # characters


class WrongKey(ValueError):
    """A client's key is invalid; the text says why."""


def client_key(meta: Mapping[str, Any] | None) -> str | None:
    """The key that a client gives; `None` if it gives none. Raises `WrongKey`."""
    for name in _NAMES:
        value = None if meta is None else meta.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
            raise WrongKey(f"_meta[{name!r}] must be a text of 1 to {_LONGEST} characters.")
        return f"{name}:{value}"
    return None


def call_key(given: str, tool_name: str, arguments: Mapping[str, Any]) -> str:
    """The idempotency key of a call: of the client's own one, the tool and its arguments.

    Clients give the same id to other calls now and then; those are other intentions, and no conflict.
    """
    text = json.dumps([given, tool_name, arguments], sort_keys=True, separators=(",", ":"))
    return "mcp:" + hashlib.sha256(text.encode()).hexdigest()
