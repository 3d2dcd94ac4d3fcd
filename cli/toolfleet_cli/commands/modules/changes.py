"""Adds modules to a running fleet, and removes them: `toolfleet modules add` and `remove`."""

import asyncio
from typing import Annotated

import typer
from pydantic import ValidationError

from toolfleet_cli.console.output import note, say, shown_url
from toolfleet_cli.processes.completion import complete_modules
from toolfleet_cli.remote import modules as remote_modules
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The module's name.", autocompletion=complete_modules)
]


def register(app: typer.Typer) -> None:
    """Give the group the commands."""
    for command in (add, remove):
        app.command()(over_fleet(command))


def add(  # noqa: PLR0913 - each is an option
    name: NameArgument,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the workers reach it.")],
    *,
    slow: Annotated[bool, typer.Option("--slow", help="Have the slow lane serve it.")] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The limit of its calls, instead of the lane's.")
    ] = None,
    scales_from_zero: Annotated[
        bool, typer.Option("--scales-from-zero", help="Its lane may have no worker at times: its calls wait for one.")
    ] = False,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Add a module to the running fleet: workers serve it and agents list its tools within seconds.

    Nothing is restarted. Agents need not reach it.
    """
    try:
        entry = ModuleEntry(module=name, url=url, slow=slow, timeout_seconds=timeout, scales_from_zero=scales_from_zero)
    except ValidationError as exc:
        raise SettingsError(" ".join(f"{_sentence(error['msg'], error['loc'])}" for error in exc.errors())) from exc
    stored = asyncio.run(_add(entry, by)) if gateway is None else entry
    lane = stored.lane if gateway is None else remote_modules.added(gateway, entry)
    say(f"Module {stored.module} is in the {lane} lane, at {shown_url(str(stored.url))}.")
    note("`toolfleet modules list` shows what it offers, as soon as a worker has asked it.")


def remove(
    name: NameArgument,
    *,
    drain: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Run calls that wait for so long, before the rest are ended. [30]"),
    ] = None,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Remove a module from the running fleet: it takes no more calls, and what waits is run, or ended with a clear result."""
    seconds = asyncio.run(_remove(name, drain, by)) if gateway is None else remote_modules.removed(gateway, name, drain)
    say(
        f"Module {name} takes no more calls. Those that still wait in {seconds:g} s are ended: nothing of them is executed."
    )


async def _add(entry: ModuleEntry, by: str | None) -> ModuleEntry:
    from toolfleet_tasks.operations.change_trail import Actor  # noqa: PLC0415 - `--help` needs nothing of the tasks
    from toolfleet_tasks.operations.module_changes import ModuleChanges  # noqa: PLC0415 - as above

    async with ModuleChanges.of(load_settings(), by=Actor.at_command_line(by)) as changes:
        return await changes.add(entry)


async def _remove(name: str, drain: float | None, by: str | None) -> float:
    from toolfleet_tasks.operations.change_trail import Actor  # noqa: PLC0415 - as above
    from toolfleet_tasks.operations.module_changes import DRAIN_SECONDS, ModuleChanges  # noqa: PLC0415 - as above

    seconds = DRAIN_SECONDS if drain is None else drain
    async with ModuleChanges.of(load_settings(), by=Actor.at_command_line(by)) as changes:
        return (await changes.remove(name, drain_seconds=seconds)).drain_seconds


def _sentence(message: str, place: tuple[int | str, ...]) -> str:
    words = message.removeprefix("Value error, ").rstrip(".")
    return f"{place[0] if place else 'The module'}: {words}."
