"""Decides who may use a tool: four levels, one order.

`denial` is asked three times: when tools are listed, when a call is published, and before a worker runs it.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

from toolfleet_registry.contracts import Level
from toolfleet_registry.contracts.tool_definition import BROKEN

Modules: TypeAlias = frozenset[str] | Literal["*"]
"""What a caller may reach: these modules, or all."""


OF_FUNCTIONS: Level = "user"
"""What a tool asks for that is a function, unless its author says otherwise. A manifest that says nothing asks for `guest`."""


class Permission(IntEnum):
    """guest < user < admin < owner."""

    GUEST = 0
    USER = 1
    ADMIN = 2
    OWNER = 3


@dataclass(frozen=True, slots=True)
class Access:
    """The facts that decide who may use a tool.

    `closed`: why no caller may, with any permission; `None`: it is open.
    """

    tool_name: str
    module: str
    required_permission: str
    closed: str | None = None


def denial(tool: Access, permission: str, modules: Modules) -> str | None:
    """Return why a caller with `permission` who reaches `modules` may not use the tool; `None` if it may.

    A caller who does not reach the module learns nothing else of it; one without the permission does not learn that the
    tool is closed.
    """
    if not reaches(tool.module, modules):
        return module_denial(tool.module)
    if not permits(permission, tool.required_permission):
        return tool_denial(tool.tool_name, permission, tool.required_permission[:_MOST_SHOWN])
    return tool.closed


def level_of_caller(permission: str) -> Permission:
    """Return a caller's level. An unknown one counts as guest: a typo must not give rights."""
    return level_of_tool(permission) or Permission.GUEST


def level_of_tool(required_permission: str) -> Permission | None:
    """Return the level a tool asks for; `None` if it is unknown, which closes the tool: a typo must not open it."""
    return _LEVELS.get(required_permission)


def level_fault(permission: str) -> str | None:
    """Return what is wrong with the name of a permission level, as a clause, or `None`."""
    if level_of_tool(permission) is not None:
        return None
    return f"permission must be guest, user, admin or owner, not {permission!r}"


def permits(permission: str, required_permission: str) -> bool:
    """Return whether a caller with `permission` may use a tool that asks for `required_permission`. Fails closed."""
    required = level_of_tool(required_permission)
    return required is not None and level_of_caller(permission) >= required


def reaches(module: str, allowed_modules: AbstractSet[str] | Literal["*"]) -> bool:
    """Return whether a module is among the caller's modules."""
    return allowed_modules == "*" or module in allowed_modules


def tool_denial(tool_name: str, permission: str, required_permission: str) -> str:
    """Return why a caller with `permission` may not use a tool that asks for `required_permission`."""
    if fault := broken_because(required_permission):
        return f"Tool {tool_name!r} is closed: {fault}."
    if level_of_tool(required_permission) is None:
        return f"Tool {tool_name!r} is closed: it needs the unknown permission {required_permission!r}."
    level = level_of_caller(permission).name.lower()
    return f"Tool {tool_name!r} needs {required_permission!r}; caller is {level!r}."


def broken_because(required_permission: str) -> str | None:
    """Return what is wrong with a tool if its definition cannot be used: the fault replaces its permission level, which closes it everywhere."""
    fault = required_permission.removeprefix(BROKEN)
    return None if fault == required_permission else fault[:_MOST_SHOWN]


def module_denial(module: str) -> str:
    """Return why a caller may not use any tool of a module that is not among its own."""
    return f"Module {module!r} is not among the caller's modules."


_MOST_SHOWN = 256  # characters of what a module asks for
_LEVELS = {level.name.lower(): level for level in Permission}
