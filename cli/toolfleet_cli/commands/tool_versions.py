"""Lists the specifications that the registry keeps of a tool, and goes back to one: `toolfleet tools versions` and `rollback`."""

import asyncio
import contextlib
from typing import Annotated, Any

import typer
from redis.exceptions import RedisError

from toolfleet_cli.commands.operators import operate
from toolfleet_cli.console.output import add_row, note, say, say_json, show_table, table
from toolfleet_cli.processes.completion import complete_tools
from toolfleet_registry.catalog.operator import Operator
from toolfleet_registry.manifests.digests import digest_of
from toolfleet_registry.manifests.specs import ToolRegistration
from toolfleet_registry.settings import load_settings

_MOST_NAMED = 5

ToolArgument = Annotated[str, typer.Argument(metavar="MODULE.TOOL", autocompletion=complete_tools)]


def register(app: typer.Typer) -> None:
    """Give the group the commands."""
    for command in (versions, rollback):
        app.command()(command)


def versions(
    name: ToolArgument, *, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show a tool's last specifications, the latest first: the registry keeps 20."""

    async def ask(operator: Operator) -> tuple[list[ToolRegistration], str | None]:
        found = await operator.versions(name)
        return found, await operator.version_in_force(name)

    found, in_force = operate(ask)
    if as_json:
        say_json([_as_json(one, is_in_force=one.spec.version == in_force) for one in reversed(found)])
        return
    shown = table("VERSION", "SINCE", "", "DESCRIPTION")
    for one in reversed(found):
        first_line = (one.spec.description or "").partition("\n")[0]
        state = _state(one) if one.spec.version == in_force else ""
        add_row(shown, one.spec.version or "-", one.created_at or "-", state, first_line)
    show_table(shown)


def rollback(name: ToolArgument, version: Annotated[str, typer.Argument(metavar="VERSION")]) -> None:
    """Put an earlier version of a tool in force, until its module offers a later one than it had.

    It says what callers are listed and what calls are checked by: the module goes on running its own code.
    """
    registration = operate(lambda operator: operator.rollback(name, version))
    say(f"{name}: version {version} is in force")
    if since := registration.rolled_back_from:
        note(f"Until its module offers a later version than {since}, or `toolfleet tools approve {name}`.")
        _warn_of_older_workers()


def _warn_of_older_workers() -> None:
    """Workers of a release that knows no rollback register what a module offers as it comes."""
    from toolfleet_tasks.presence.fleet_versions import KEEPS_ROLLBACKS, older_workers  # noqa: PLC0415 - as in `call`

    with contextlib.suppress(RedisError, OSError):  # the rollback is done, and has said so
        if older := asyncio.run(older_workers(load_settings(), KEEPS_ROLLBACKS)):
            many = f" and {len(older) - _MOST_NAMED} more" if len(older) > _MOST_NAMED else ""
            names = ", ".join(older[:_MOST_NAMED])
            text = f"Workers of an earlier release undo it when they next ask the module: {names}{many}. Upgrade them, then roll back again."
            note(text, style="yellow")


def _state(one: ToolRegistration) -> str:
    words = "in force" if one.rolled_back_from is None else f"in force, rolled back from {one.rolled_back_from}"
    return words if one.enabled else f"{words}, disabled"


def _as_json(one: ToolRegistration, *, is_in_force: bool) -> dict[str, Any]:
    return {
        "version": one.spec.version,
        "digest": digest_of(one.spec),
        "created_at": one.created_at,
        "is_in_force": is_in_force,
        "rolled_back_from": one.rolled_back_from,
        "spec": one.spec.model_dump(mode="json"),
    }
