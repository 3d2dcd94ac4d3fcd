"""Declares the options for the user of a command: by default the owner, who may use everything."""

from collections.abc import Collection
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
ModulesOption = Annotated[
    str | None,
    typer.Option(
        "--modules",
        metavar="A,B",
        help="Use these modules only; * is all. Else all, or for a guest those of TOOLFLEET_DEFAULT_GUEST_MODULES.",
    ),
]

ConversationOption = Annotated[
    str | None, typer.Option("--conversation-id", metavar="ID", help="The conversation that the call belongs to.")
]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run-id", metavar="ID", help="The turn of an agent that it is part of, which its profile may limit."
    ),
]

AgentOption = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Act as this agent, by its profile.")]


def caller_of(user: str | None, permission: Level, modules: str | None, agent: str | None = None) -> Caller:
    """Return the caller that the options describe: without `--modules` the same as `Caller` without `allowed_modules`."""
    names = None if modules is None else frozenset(name.strip() for name in modules.split(",") if name.strip())
    said = {"user_id": user, "permission": permission.value, "allowed_modules": names, "agent": agent}
    return Caller.model_validate(said)


def refuse_unknown(caller: Caller, known: Collection[str]) -> None:
    """Raise `BadParameter` for modules of a caller that are not among the `known` ones: nothing would be found for a misspelt one."""
    named = caller.allowed_modules
    unknown = sorted(set(named) - set(known)) if isinstance(named, frozenset) else []
    if unknown:
        there = f"there are {', '.join(sorted(known))}" if known else "there are none"
        raise typer.BadParameter(
            f"there is no module {', '.join(map(repr, unknown))}; {there}.", param_hint="--modules"
        )
