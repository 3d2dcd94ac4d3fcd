"""Decides which calls wait for each other: those that have the same value at their tools' `concurrency_key`."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from toolfleet_registry.contracts import ToolDefinition, Turn
from toolfleet_registry.contracts.tool_definition import argument_path

_MOST_AT_ONCE = 1_000_000  # that is without a limit, and a number that Redis's scripts write as they read it


def turn_of(tool: ToolDefinition, arguments: Mapping[str, Any], user_id: str | None) -> Turn | None:
    """Return the turn that a call waits for; agents and workers compute the same one.

    All tools of a module with equal values share a line. Numbers are equal as JSON Schema has it (1 is 1.0), members of an
    object have no order, and texts are compared letter for letter. The value itself is kept nowhere; from the digest of a
    short one, who can read Redis may guess it.

    Args:
        tool: The tool in effect.
        arguments: The call's arguments, as the tool takes them: with their defaults.
        user_id: In whose name the call is made; all calls without a user are one user's.

    Returns:
        The turn; `None` if the tool has no key, or the call has nothing or null there.

    """
    path = argument_path(tool.concurrency_key or "") or ()
    value: Any = arguments if path else None
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return None
    module = tool.name.partition(".")[0]
    content = [module, [user_id] if tool.concurrency_per_user else None, _same(value)]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return Turn(
        line=f"{module}:{hashlib.sha256(text.encode()).hexdigest()}", limit=min(tool.concurrency_limit, _MOST_AT_ONCE)
    )


def words_of(tool: ToolDefinition) -> str | None:
    """Return which of the tool's calls wait for each other, in words; `None` if none do."""
    if tool.concurrency_key is None:
        return None
    whose = "of each user" if tool.concurrency_per_user else "of all users"
    return f"{tool.concurrency_limit} at a time with the same {tool.concurrency_key!r}, {whose}"


def _same(value: Any) -> Any:
    """Return a value that JSON writes in one way for all values that are equal to it."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _same(child) for name, child in value.items()}
    return [_same(child) for child in value] if isinstance(value, list | tuple) else value
