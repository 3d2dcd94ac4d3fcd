"""Judges the caller's fields of a call, for any tool: its names, the arguments as JSON, and the version that it names."""

from toolfleet_registry.contracts import Caller, ToolCall, ToolDefinition
from toolfleet_registry.policy.identities import fault_in_names
from toolfleet_registry.schemas.arguments import fault_in, size_fault


def fault_in_call(call: ToolCall, caller: Caller, *, most_bytes: int, are_small: bool = False) -> str | None:
    """Return why such a call is not published, and where the fault is, or `None`. Never repeats a value.

    `are_small`: whether its arguments are known to be small values, so that they need no further check.
    """
    return (
        fault_in_names(
            user_ids=(call.user_id, caller.user_id),
            idempotency_key=call.idempotency_key,
            tool_version=call.tool_version,
        )
        or fault_in(call.arguments, are_small=are_small)
        or size_fault(call.arguments, most=most_bytes, are_small=are_small)
    )


def version_fault(tool: ToolDefinition, named: str | None) -> str | None:
    """Return why a call that names this version of the tool is not for the one in effect; `None` if it is, or names none.

    Versions are the same if their texts are equal: `1.0` and `1.0.0` are two versions.
    """
    if named is None or named == tool.version:
        return None
    now = "no version" if tool.version is None else f"version {_quoted(tool.version)}"
    return f"Tool {tool.name!r} has {now} now, and the call names version {_quoted(named)}."


def _quoted(version: str) -> str:
    shown = version if len(version) <= _MOST_SHOWN else f"{version[:_MOST_SHOWN]}…"
    return repr(shown.encode("utf-8", "replace").decode())


_MOST_SHOWN = 128  # characters
