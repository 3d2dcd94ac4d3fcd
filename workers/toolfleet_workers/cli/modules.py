"""`toolfleet modules`: what every module offers, and how old the news is."""

import asyncio
from typing import Annotated, Literal

import typer

from toolfleet_registry.contracts import ModuleStatus
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_workers.cli.output import age, note, plain, progress, say_json, show_table, shown_url, table

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


async def _statuses(*, ask: bool) -> tuple[Settings, dict[str, ModuleStatus]]:
    from toolfleet import ToolFleet  # noqa: PLC0415 - takes a second to load, which `--help` should not

    settings = load_settings()
    async with progress("Asking the modules"), ToolFleet(settings=settings) as fleet:
        return settings, await (fleet.refresh() if ask else fleet.statuses())


def _show(settings: Settings, statuses: dict[str, ModuleStatus], *, as_json: bool) -> None:
    rows = [(status, settings.module_services[name], _state(status, settings)) for name, status in statuses.items()]
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
        tools = f"{status.tools}" + (f" ({len(status.closed_tools)} closed)" if status.closed_tools else "")
        shown.add_row(
            status.module, shown_url(url), _coloured(state), tools, age(status.age_seconds), plain(status.error or "")
        )
    show_table(shown)


def _state(status: ModuleStatus, settings: Settings) -> Literal["ok", "stale", "unreachable"]:
    """Stale: there are tools, but the last looks have failed; the look before last was missed if they are as old as that."""
    if status.age_seconds is None and not status.ok:
        return "unreachable"
    is_old = (status.age_seconds or 0) > 2 * settings.refresh_interval_seconds
    return "stale" if is_old or not status.ok else "ok"


def _coloured(state: str) -> str:
    colour = {"ok": "green", "stale": "yellow", "unreachable": "red"}[state]
    return f"[{colour}]{state}[/{colour}]"
