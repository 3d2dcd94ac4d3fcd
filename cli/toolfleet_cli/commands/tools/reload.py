"""Has the hosts of tool folders read their files again: `toolfleet tools reload`."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from toolfleet_cli.console import load_errors
from toolfleet_cli.console.output import fail, note, progress, say, say_json
from toolfleet_cli.remote import tools as remote_tools
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway
from toolfleet_registry.contracts.load_errors import ToolLoadError
from toolfleet_registry.settings import Settings, load_settings

if TYPE_CHECKING:
    from toolfleet_registry.directory.reload_requests import ReloadAnswer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Give the group the command."""
    for command in (reload, errors):
        app.command()(over_fleet(command))


def reload(
    *,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", min=1, max=600, help="Wait so long at most.")] = 60,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """Have all hosts of tool folders read their files anew, also those that did not load before and have not changed.

    Exits with 1 where files do not load as they stand, no host is there, or one does not come back in time.
    """
    answers = asyncio.run(_asked(load_settings(), seconds)) if gateway is None else remote_tools.reloaded(gateway)
    if not answers:
        fail("No host of a tool folder has answered: none is running, or none has this fleet's Redis.", code=1)
    if as_json:
        say_json([each.model_dump(mode="json") for each in answers])
    else:
        for each in answers:
            say(f"{each.module}: {each.tools} tools" if each.is_done else f"{each.module}: still at it")
        done = [each for each in answers if each.is_done]
        say(f"{sum(each.tools for each in done)} tools, {sum(len(each.errors) for each in done)} errors")
    has_errors = load_errors.show([error for each in answers for error in each.errors])
    raise typer.Exit(1 if has_errors or not all(each.is_done for each in answers) else 0)


def errors(*, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show which files of tool folders, and operations of documents, are not served as they stand. Exits with 1 if there are more than notes."""
    found = asyncio.run(_errors(load_settings())) if gateway is None else remote_tools.errors(gateway)
    if as_json:
        say_json([each.model_dump(mode="json") for each in found])
    elif not found:
        note("Everything is served as it stands.")
    raise typer.Exit(1 if load_errors.show(found) else 0)


async def _errors(settings: Settings) -> list[ToolLoadError]:
    from toolfleet import ToolFleet

    async with progress("Asking Redis"), ToolFleet(settings=settings) as fleet:
        return [error for status in (await fleet.modules.statuses()).values() for error in status.load_errors]


async def _asked(settings: Settings, seconds: float) -> "Sequence[ReloadAnswer]":
    from toolfleet_tasks.operations.tool_reload import reload_tools

    async with progress("Asking the hosts"):
        return await reload_tools(settings, seconds=seconds)
