"""Refuses the options for a command's user if the key determines the user."""

import typer

from toolfleet_cli.console.caller import Level


def refuse_caller_options(
    user: str | None, permission: Level = Level.OWNER, modules: str | None = None, agent: str | None = None
) -> None:
    """Raise `BadParameter` if one of them is not as it is by default."""
    if user is not None or permission is not Level.OWNER or modules is not None:
        raise typer.BadParameter("a gateway goes by its key: leave --user, --permission and --modules out.")
    if agent is not None:
        raise typer.BadParameter("a gateway lists the tools of its key: leave --agent out.", param_hint="--agent")
