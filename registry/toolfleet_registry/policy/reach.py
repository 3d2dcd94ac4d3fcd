"""Decides which modules a caller reaches: those that it names, else all, and for a guest those that the settings name.

An agent decides that once, and sends the result: workers, jobs and dead letters keep its decision. A message without it
is from an agent with an earlier rule, by which every caller reached what a guest reaches.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.permissions import Modules, Permission, level_of_caller, reaches


def modules_of(caller: Caller, guest_modules: frozenset[str]) -> Modules:
    """The modules that a caller reaches who asks now."""
    if caller.allowed_modules is not None:
        return caller.allowed_modules
    return guest_modules if level_of_caller(caller.permission) is Permission.GUEST else "*"


def resolved(caller: Caller, guest_modules: frozenset[str]) -> Caller:
    """The caller as it is sent: with the modules that it reaches."""
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
