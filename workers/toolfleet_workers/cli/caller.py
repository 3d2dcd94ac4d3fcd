"""The options that say in whose name a command acts. By default it is the owner, who may use everything."""

from enum import StrEnum
from typing import Annotated

import typer

from toolfleet_registry.contracts import Caller


class Level(StrEnum):
    """The permissions, lowest first."""

    GUEST = "guest"
    USER = "user"
    ADMIN = "admin"
    OWNER = "owner"


UserOption = Annotated[str | None, typer.Option("--user", metavar="ID", help="Act for this user.")]
PermissionOption = Annotated[Level, typer.Option("--permission", help="Act with this permission.")]
ModulesOption = Annotated[str, typer.Option("--modules", metavar="A,B", help="Use these modules only; * is all.")]


def caller_of(user: str | None, permission: Level, modules: str) -> Caller:
    """The caller that the options describe."""
    names = frozenset(name.strip() for name in modules.split(",") if name.strip())
    return Caller(user_id=user, permission=permission, allowed_modules="*" if "*" in names else names)
