"""Judges the caller's fields of a call, for any tool: names, arguments, version, and the modules that the caller reaches.

An agent decides that once, and sends the result: workers, jobs and dead letters keep its decision. A message without it
is from an agent with an earlier rule, by which every caller reached what a guest reaches.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from toolfleet_registry.contracts import Caller, ToolCall, ToolDefinition
from toolfleet_registry.permissions import Modules, Permission, level_of_caller, reaches
from toolfleet_registry.schemas.arguments import fault_in, size_fault
from toolfleet_registry.schemas.effort import MOST_BYTES

LONGEST = 256
"""Characters of a user id, an idempotency key and a tool's version: a conversation's and a model's ids together are half of that."""

_MOST_SHOWN = 128  # characters


def fault_in_names(
    *, user_ids: tuple[str | None, ...], idempotency_key: str | None, tool_version: str | None
) -> str | None:
    """Return why a call cannot be made under these names, or `None`. Never repeats one."""
    for user_id in user_ids:
        if user_id is not None and len(user_id) > LONGEST:
            return f"The user id has more than {LONGEST} characters."
    if idempotency_key is not None and len(idempotency_key) > LONGEST:
        return f"The idempotency key has more than {LONGEST} characters."
    return None if tool_version is None else fault_in_version(tool_version)


def fault_in_version(named: str | None) -> str | None:
    """Return why a call cannot name this version of its tool, whichever is in effect, or `None`. Never repeats it."""
    if named == "":
        return "The tool version is empty; a call of whichever version leaves it out."
    if named is not None and len(named) > LONGEST:
        return f"The tool version has more than {LONGEST} characters."
    return None


def modules_of(caller: Caller, guest_modules: frozenset[str]) -> Modules:
    """Return the modules that a caller reaches who asks now."""
    if caller.allowed_modules is not None:
        return caller.allowed_modules
    return guest_modules if level_of_caller(caller.permission) is Permission.GUEST else "*"


def resolved(caller: Caller, guest_modules: frozenset[str]) -> Caller:
    """Return the caller as it is sent: with the modules that it reaches."""
    if caller.allowed_modules is not None:
        return caller
    return caller.model_copy(update={"allowed_modules": modules_of(caller, guest_modules)})


def as_sent(caller: Caller, guest_modules: frozenset[str]) -> Caller:
    """Return the caller of a message or record as its sender meant it: see above for one that names no modules."""
    if caller.allowed_modules is not None:
        return caller
    return caller.model_copy(update={"allowed_modules": guest_modules})


def sees_calls_of(caller: Caller, tool_name: str) -> bool:
    """Return whether a caller is shown its user's calls of a tool: one that names modules sees only calls of these."""
    modules = caller.allowed_modules
    return modules is None or reaches(tool_name.partition(".")[0], modules)


def newly_reached(tools: Iterable[ToolDefinition], guest_modules: AbstractSet[str]) -> list[ToolDefinition]:
    """Return the tools that callers above a guest reach without naming modules, and did not by the earlier rule."""
    return [tool for tool in tools if tool.name.partition(".")[0] not in guest_modules]


def fault_in_call(call: ToolCall, caller: Caller, *, most_bytes: int, are_small: bool = False) -> str | None:
    """Return why such a call is not published, and where the fault is, or `None`. Never repeats a value.

    `are_small`: whether its arguments are known to be small values, so that they need no further check.
    """
    key, version, users = call.idempotency_key, call.tool_version, (call.user_id, caller.user_id)
    fault = None
    if key is not None or version is not None or users != (None, None):
        fault = fault_in_names(user_ids=users, idempotency_key=key, tool_version=version)
    if fault or (are_small and type(call.arguments) is dict and most_bytes >= MOST_BYTES):
        return fault
    return fault_in(call.arguments) or size_fault(call.arguments, most=most_bytes)


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
