"""Lists the specifications that the registry keeps of a tool, and goes back to one: `toolfleet tools versions` and `rollback`."""

from typing import Annotated, Any

import typer

from toolfleet_cli.commands.tools.door import tools_of
from toolfleet_cli.console.output import add_row, note, say, say_json, show_table, table
from toolfleet_cli.console.tool_states import ToolVersion
from toolfleet_cli.processes.completion import complete_tools
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway

_MOST_NAMED = 5

ToolArgument = Annotated[str, typer.Argument(metavar="MODULE.TOOL", autocompletion=complete_tools)]


def register(app: typer.Typer) -> None:
    """Give the group the commands."""
    for command in (versions, rollback):
        app.command()(over_fleet(command))


def versions(
    name: ToolArgument,
    *,
    gateway: Gateway | None = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a tool's last specifications, the latest first: the registry keeps 20."""
    found = tools_of(gateway).versions(name)
    if as_json:
        say_json([_as_json(one) for one in found])
        return
    shown = table("VERSION", "SINCE", "", "DESCRIPTION")
    for one in found:
        first_line = (one.spec.get("description") or "").partition("\n")[0]
        state = _state(one) if one.is_in_force else ""
        add_row(shown, one.version or "-", one.created_at or "-", state, first_line)
    show_table(shown)


def rollback(
    name: ToolArgument,
    version: Annotated[str, typer.Argument(metavar="VERSION")],
    *,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Put an earlier version of a tool in force, until its module offers a later one than it had.

    It says what callers are listed and what calls are checked by: the module goes on running its own code.
    """
    done = tools_of(gateway, by).rollback(name, version)
    say(f"{name}: version {version} is in force")
    if done.since:
        note(f"Until its module offers a later version than {done.since}, or `toolfleet tools approve {name}`.")
        _warn_of_older_workers(done.undone_by)


def _warn_of_older_workers(older: tuple[str, ...]) -> None:
    """Workers of a release that knows no rollback register what a module offers as it comes."""
    if older:
        many = f" and {len(older) - _MOST_NAMED} more" if len(older) > _MOST_NAMED else ""
        names = ", ".join(older[:_MOST_NAMED])
        text = f"Workers of an earlier release undo it when they next ask the module: {names}{many}. Upgrade them, then roll back again."
        note(text, style="yellow")


def _state(one: ToolVersion) -> str:
    words = "in force" if one.rolled_back_from is None else f"in force, rolled back from {one.rolled_back_from}"
    return words if one.enabled else f"{words}, disabled"


def _as_json(one: ToolVersion) -> dict[str, Any]:
    return {
        "version": one.version,
        "digest": one.digest,
        "created_at": one.created_at,
        "is_in_force": one.is_in_force,
        "rolled_back_from": one.rolled_back_from,
        "spec": one.spec,
    }
