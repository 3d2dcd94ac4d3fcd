"""Lists the tools that a caller may use, and what they take: `toolfleet tools`."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from toolfleet_cli.commands.tools import changes, differences, reload, versions
from toolfleet_cli.commands.tools.door import tools_of
from toolfleet_cli.console import load_errors
from toolfleet_cli.console.caller import (
    AgentOption,
    Level,
    ModulesOption,
    PermissionOption,
    UserOption,
    caller_of,
    refuse_unknown,
)
from toolfleet_cli.console.output import add_row, age, fail, note, progress, say, say_json, show_table, table
from toolfleet_cli.processes.completion import complete_tools
from toolfleet_cli.remote import tools as remote_tools
from toolfleet_cli.remote.caller import refuse_caller_options
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway
from toolfleet_registry.contracts import Caller, ModuleStatus, ToolDefinition
from toolfleet_registry.contracts.tool_definition import ToolSource, tool_named
from toolfleet_registry.manifests.effects import effect_of
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet import ToolFleet

app = typer.Typer(help="The tools: which there are, what they take, and which are in effect.", no_args_is_help=True)
for part in (differences, changes, reload, versions):
    part.register(app)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_Statuses = Mapping[str, ModuleStatus]


@app.command("list")
@over_fleet
def list_(  # noqa: PLR0913 - these are the command line's options
    *,
    user: UserOption = None,
    permission: PermissionOption = Level.OWNER,
    modules: ModulesOption = None,
    agent: AgentOption = None,
    closed: Annotated[bool, typer.Option("--closed", help="List those that nobody may use now, and why.")] = False,
    ignore_errors: Annotated[
        bool, typer.Option("--ignore-errors", help="Exit with 0 also where files of tool folders do not load.")
    ] = False,
    sources: Annotated[bool, typer.Option("--sources", help="Show where each tool of a folder stands.")] = False,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List the tools that a caller may use. Exits with 1 where files of tool folders do not load as they stand."""
    if closed:
        differences.show_closed(tools_of(gateway), as_json=as_json)
        return
    tools, statuses = _listed(gateway, user, permission, modules, agent)
    if not as_json and not tools:
        note("There are no tools for this caller; `toolfleet modules list` shows the modules.")
    else:
        _show_all(tools, statuses, as_json=as_json, with_sources=sources)
    has_errors = load_errors.show([error for status in statuses.values() for error in status.load_errors])
    raise typer.Exit(1 if has_errors and not ignore_errors else 0)


@app.command()
@over_fleet
def search(  # noqa: PLR0913 - these are the command line's options
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...", help="Or the beginning of one.")] = None,
    *,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Only with this tag; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many.")] = 10,
    user: UserOption = None,
    permission: PermissionOption = Level.OWNER,
    modules: ModulesOption = None,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """Find the tools that a caller may use by words and tags, the best first."""
    wanted = " ".join(words or ())
    if gateway is None:
        caller = caller_of(user, permission, modules)

        async def find(fleet: "ToolFleet") -> list[ToolDefinition]:
            return await fleet.search(wanted, caller, tags=tag or (), limit=limit)

        tools, statuses = asyncio.run(_asked(find, caller))
    else:
        refuse_caller_options(user, permission, modules)
        tools, statuses = remote_tools.found(gateway, wanted, tag or [], limit)
    if not as_json and not tools:
        note("No tool of this caller has such words and tags.")
        return
    _show_all(tools, statuses, as_json=as_json)


@app.command()
@over_fleet
def show(
    name: Annotated[str, typer.Argument(metavar="MODULE.TOOL", autocompletion=complete_tools)],
    *,
    user: UserOption = None,
    permission: PermissionOption = Level.OWNER,
    modules: ModulesOption = None,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """Show one tool: what it does and which arguments it takes."""
    if gateway is not None:
        refuse_caller_options(user, permission, modules)
        _show_one(*remote_tools.shown(gateway, name), as_json=as_json)
        return
    tools, statuses = asyncio.run(_tools(caller_of(user, permission, modules)))
    tool = tool_named(name, tools)
    if tool is None:
        why = tools_of(None).closed().get(name)
        fail(why or f"Unknown tool: {name}. `toolfleet tools list` shows those that there are.", code=1)
    _show_one(tool, statuses, as_json=as_json)


def _show_one(tool: ToolDefinition, statuses: _Statuses, *, as_json: bool) -> None:
    if as_json:
        say_json(_as_json(tool, statuses))
    else:
        _print(tool, statuses)


def _listed(
    gateway: Gateway | None, user: str | None, permission: Level, modules: str | None, agent: str | None
) -> tuple[list[ToolDefinition], _Statuses]:
    if gateway is None:
        return asyncio.run(_tools(caller_of(user, permission, modules, agent)))
    refuse_caller_options(user, permission, modules, agent)
    return remote_tools.listed(gateway)


async def _tools(caller: Caller) -> tuple[list[ToolDefinition], _Statuses]:
    async def ask(fleet: "ToolFleet") -> list[ToolDefinition]:
        return await fleet.tools(caller)

    return await _asked(ask, caller)


async def _asked(
    ask: Callable[["ToolFleet"], Awaitable[list[ToolDefinition]]],
    caller: Caller,
) -> tuple[list[ToolDefinition], _Statuses]:
    from toolfleet import ToolFleet

    async with progress("Asking the modules"), ToolFleet(settings=load_settings()) as fleet:
        found, statuses = await ask(fleet), await fleet.modules.statuses()
    refuse_unknown(caller, statuses)
    return found, statuses


def _show_all(tools: list[ToolDefinition], statuses: _Statuses, *, as_json: bool, with_sources: bool = False) -> None:
    places = {each.tool_name: each for status in statuses.values() for each in status.sources} if with_sources else {}
    if as_json:
        say_json([_as_json(tool, statuses) | _place(places.get(tool.name)) for tool in tools])
        return
    notes = {tool.name: _notes(tool, statuses) for tool in tools}
    more = ("NOTE",) if any(notes.values()) else ()
    place_columns = ("SOURCE", "MODULE", "VERSION") if with_sources else ()
    shown = table("TOOL", "PERMISSION", "EFFECT", *more, *place_columns, "DESCRIPTION")
    for tool in tools:
        first_line = tool.description.partition("\n")[0]
        marks = (notes[tool.name] or "-",) if more else ()
        place = places.get(tool.name)
        known = (place.file, place.python_module, tool.version or "-") if place else ("-", "-", tool.version or "-")
        where = known if with_sources else ()
        add_row(shown, tool.name, tool.required_permission, effect_of(tool) or "-", *marks, *where, first_line)
    show_table(shown)


def _place(place: ToolSource | None) -> dict[str, Any]:
    return {} if place is None else {"source": place.model_dump(exclude={"tool_name"})}


def _as_json(tool: ToolDefinition, statuses: _Statuses) -> dict[str, Any]:
    shown = tool.model_dump(mode="json", exclude_none=True)
    return {**shown, "is_stale": True} if _stale(tool, statuses) else shown


def _notes(tool: ToolDefinition, statuses: _Statuses) -> str:
    stale = _stale(tool, statuses)
    return ", ".join(word for word in (f"stale ({stale})" if stale else "", "deprecated" * tool.deprecated) if word)


def _stale(tool: ToolDefinition, statuses: _Statuses) -> str | None:
    """Return the age of the module's manifest, if it is too old."""
    status = statuses.get(tool.name.partition(".")[0])
    return age(status.age_seconds) if status is not None and status.is_stale else None


def _print(tool: ToolDefinition, statuses: _Statuses) -> None:
    say(f"{tool.name}\n\n{tool.description}\n")
    facts = {
        "permission": tool.required_permission,
        "effect": effect_of(tool),
        "limit": tool.timeout_seconds and f"{tool.timeout_seconds:g} s",
        "version": tool.version,
        "cost": tool.cost,
        "tags": ", ".join(tool.tags),
        "deprecated": "yes" if tool.deprecated else None,
        "stale": _stale(tool, statuses),
    }
    say("  ".join(f"{name}: {value}" for name, value in facts.items() if value))
    if tool.input_schema is not None:
        say(f"\nArguments (JSON Schema):\n{json.dumps(tool.input_schema, indent=2, ensure_ascii=False)}")
    elif tool.parameters:
        say("")
        show_table(_parameters(tool))


def _parameters(tool: ToolDefinition) -> Table:
    shown = table("ARGUMENT", "TYPE", "REQUIRED", "DESCRIPTION")
    for parameter in tool.parameters:
        choices = "" if parameter.enum is None else f" One of {json.dumps(parameter.enum, ensure_ascii=False)}."
        required = "yes" if parameter.required else "no"
        add_row(shown, parameter.name, parameter.type, required, f"{parameter.description}{choices}")
    return shown
