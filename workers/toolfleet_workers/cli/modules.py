"""`toolfleet modules`: what every module offers, and how old the news is; and the key of each."""

import asyncio
from typing import Annotated, Literal

import typer
from rich.text import Text

from toolfleet_registry.contracts import ModuleStatus
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.names import LOCAL, is_module_name
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_workers.cli.output import add_row, age, note, progress, say, say_json, show_table, shown_url, table

app = typer.Typer(help="The modules: which there are, and whether they answer.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_(*, as_json: JsonOption = False) -> None:
    """Show what is known of every module. Asks none of them."""
    _show(*asyncio.run(_statuses(ask=False)), as_json=as_json)


@app.command()
def refresh(*, as_json: JsonOption = False) -> None:
    """Ask every module now for what it offers, and show what came of it."""
    _show(*asyncio.run(_statuses(ask=True)), as_json=as_json)


@app.command()
def key(module: Annotated[str, typer.Argument(metavar="NAME", help="The module's name.")]) -> None:
    """Print the key with which a module verifies who calls it: its TOOLFLEET_MODULE_KEY. A secret of that module."""
    from toolfleet_tasks.signing import module_key  # noqa: PLC0415 - only this command needs it

    settings = load_settings()
    if settings.signing_key is None:
        raise SettingsError("There is no signing key: set TOOLFLEET_SIGNING_KEY to the one of the fleet's workers.")
    if not is_module_name(module):
        raise SettingsError(f"Module name {module!r} may have letters, digits, '_' and '-' only.")
    if module not in settings.module_services:
        note(f"There is no module {module!r} in TOOLFLEET_MODULE_SERVICES here.")
    say(module_key(settings.signing_key, module))


async def _statuses(*, ask: bool) -> tuple[Settings, dict[str, ModuleStatus]]:
    from toolfleet import ToolFleet  # noqa: PLC0415 - takes a second to load, which `--help` should not

    settings = load_settings()
    async with progress("Asking the modules"), ToolFleet(settings=settings) as fleet:
        return settings, await (fleet.refresh() if ask else fleet.statuses())


def _show(settings: Settings, statuses: dict[str, ModuleStatus], *, as_json: bool) -> None:
    rows = [(status, _place(name, settings), _state(status)) for name, status in statuses.items()]
    if as_json:
        say_json(
            [{**status.model_dump(mode="json"), "url": shown_url(url), "state": state} for status, url, state in rows]
        )
        return
    if not rows:
        note("There are no modules: set TOOLFLEET_MODULE_SERVICES.")
        return
    shown = table("MODULE", "URL", "STATE", "TOOLS", "AGE", "ERROR")
    for status, url, state in rows:
        old = age(status.age_seconds)
        add_row(shown, status.module, shown_url(url), _coloured(state), _tools(status), old, status.error or "")
    show_table(shown)
    if any(status.withheld or status.drifted for status, _, _ in rows):
        note("`toolfleet tools diff` shows what is offered and not in effect.")


def _place(module: str, settings: Settings) -> str:
    """Its URL, or the import path of the functions that are the module; the scheduler has neither."""
    return settings.module_services.get(module) or (str(settings.local_tools) if module == LOCAL else "-")


def _tools(status: ModuleStatus) -> str:
    """How many there are, and how many of these are not in effect as they are offered."""
    exceptions = {
        "closed": len(status.closed_tools),
        "disabled": status.disabled,
        "withheld": status.withheld,
        "drifted": status.drifted,
    }
    told = ", ".join(f"{count} {what}" for what, count in exceptions.items() if count)
    return f"{status.tools} ({told})" if told else f"{status.tools}"


def _state(status: ModuleStatus) -> Literal["ok", "stale", "unreachable"]:
    """Stale: there are tools, but the last look has failed, or was too long ago."""
    if status.age_seconds is None and not status.ok:
        return "unreachable"
    return "stale" if status.is_stale or not status.ok else "ok"


def _coloured(state: str) -> Text:
    colour = {"ok": "green", "stale": "yellow", "unreachable": "red"}[state]
    return Text(state, style=colour)
