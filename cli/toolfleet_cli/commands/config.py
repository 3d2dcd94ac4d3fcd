"""Prints the settings and their origins: `toolfleet config`."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from toolfleet_cli.console import add_row, note, progress, say, say_json, show_table, shown_value, table
from toolfleet_registry.config.setting_sources import PREFIX, SettingOrigin, origin_of, unread_env_file
from toolfleet_registry.contracts import Caller
from toolfleet_registry.errors import FleetError
from toolfleet_registry.policy.call_faults import newly_reached
from toolfleet_registry.settings import Settings, load_settings

_ASK_SECONDS = 2.5
_EVERYBODY = Caller(permission="owner", allowed_modules="*")


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(config)


def config(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also what is as it is by default.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all settings.")] = False,
) -> None:
    """Show what is set here, and where: in the environment, in a line of `toolfleet.toml`, or by a running `up`.

    Lists the tools that callers above a guest reach without naming modules, and did not by an earlier rule.
    """
    settings = load_settings()
    rows = {
        name: (shown_value(settings, name), origin_of(name, start=Path.cwd())) for name in sorted(Settings.model_fields)
    }
    reached, fault = asyncio.run(_newly_reached(settings))
    if as_json:
        say_json({"settings": [_as_json(name, *row) for name, row in rows.items()], "newly_reached_tools": reached})
        return
    shown = table("SETTING", "VALUE", "FROM")
    for name, (value, origin) in rows.items():
        if everything or origin.source != "default":
            add_row(shown, name, _text(value), _place(origin))
    if shown.row_count:
        show_table(shown)
    else:
        note("Nothing is set here: all is as it is by default, and --all shows that.")
    if env_file := unread_env_file(Path.cwd()):
        note(f"{env_file} is not read here: `set -a; . ./.env` exports what it sets.")
    if reached:
        say(f"\nReached by callers above a guest who name no modules, and not before: {', '.join(reached)}")
    elif fault:
        note(fault)


async def _newly_reached(settings: Settings) -> tuple[list[str] | None, str]:
    """Return the names of the tools, and why they are not known if that is so."""
    if settings.redis_url is None:
        return None, ""
    from toolfleet import ToolFleet

    try:
        async with progress("Asking Redis"), asyncio.timeout(_ASK_SECONDS), ToolFleet(settings=settings) as fleet:
            tools = await fleet.tools(_EVERYBODY)
    except (FleetError, OSError) as exc:
        return None, f"Which tools are reached is not known: {str(exc) or 'Redis does not answer.'}"
    return [tool.name for tool in newly_reached(tools, settings.default_guest_modules)], ""


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # as it was written
    return value if isinstance(value, str) else json.dumps(value)


def _place(origin: SettingOrigin) -> str:
    return {"up": f"the running fleet in {origin.place}", "default": "default"}.get(origin.source, origin.place)


def _as_json(name: str, value: Any, origin: SettingOrigin) -> dict[str, Any]:
    place = {"source": origin.source, "place": origin.place or None}
    return {"setting": name, "variable": f"{PREFIX}{name.upper()}", "value": value, **place}
