"""Lists the tools that a caller may use, and has hosts of tool folders read their files again: `toolfleet tools`."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from toolfleet_cli.commands import tool_changes
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
from toolfleet_cli.operations import ask
from toolfleet_cli.processes.completion import complete_tools
from toolfleet_cli.remote.caller import refuse_caller_options
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.contracts import Caller, ModuleStatus, ToolDefinition
from toolfleet_registry.contracts.tool_definition import ToolLoadError, ToolSource, tool_named
from toolfleet_registry.manifests.specs import effect_of
from toolfleet_registry.settings import Settings, load_settings

if TYPE_CHECKING:
    from toolfleet import ToolFleet
    from toolfleet_registry.directory.requests import ReloadAnswer

app = typer.Typer(help="The tools: which there are, what they take, and which are in effect.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_PAGE = 1_000  # tools of one answer of a gateway
_RELOAD_SECONDS = 30.0  # beyond the ten that a gateway waits
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
        tool_changes.show_closed(gateway, as_json=as_json)
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
        tools, statuses = _found_at(gateway, wanted, tag or [], limit)
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
        found = gateway.get(place("tools", name))
        _show_one(ToolDefinition.model_validate(found), _statuses(gateway, [found]), as_json=as_json)
        return
    tools, statuses = asyncio.run(_tools(caller_of(user, permission, modules)))
    tool = tool_named(name, tools)
    if tool is None:
        from toolfleet_tasks.resources import tools as operated

        why = ask(operated.get_tool_state, None).closed.get(name)
        fail(why or f"Unknown tool: {name}. `toolfleet tools list` shows those that there are.", code=1)
    _show_one(tool, statuses, as_json=as_json)


@app.command()
@over_fleet
def reload(
    *,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", min=1, max=600, help="Wait so long at most.")] = 60,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """Have all hosts of tool folders read their files anew, also those that did not load before and have not changed.

    Exits with 1 where files do not load as they stand, no host is there, or one does not come back in time.
    """
    answers = asyncio.run(_reloaded(load_settings(), seconds)) if gateway is None else _reloaded_at(gateway)
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


@app.command()
@over_fleet
def errors(*, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show which files of tool folders, and operations of documents, are not served as they stand. Exits with 1 if there are more than notes."""
    if gateway is None:
        found = asyncio.run(_errors(load_settings()))
    else:
        found = [ToolLoadError.model_validate(each) for each in gateway.get("/tools/errors")["errors"]]
    if as_json:
        say_json([each.model_dump(mode="json") for each in found])
    elif not found:
        note("Everything is served as it stands.")
    raise typer.Exit(1 if load_errors.show(found) else 0)


tool_changes.register(app)


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
    return _listed_at(gateway)


async def _tools(caller: Caller) -> tuple[list[ToolDefinition], _Statuses]:
    async def find(fleet: "ToolFleet") -> list[ToolDefinition]:
        return await fleet.tools(caller)

    return await _asked(find, caller)


async def _asked(
    find: Callable[["ToolFleet"], Awaitable[list[ToolDefinition]]],
    caller: Caller,
) -> tuple[list[ToolDefinition], _Statuses]:
    from toolfleet import ToolFleet

    async with progress("Asking the modules"), ToolFleet(settings=load_settings()) as fleet:
        found, statuses = await find(fleet), await fleet.modules.statuses()
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


async def _errors(settings: Settings) -> list[ToolLoadError]:
    from toolfleet import ToolFleet

    async with progress("Asking Redis"), ToolFleet(settings=settings) as fleet:
        return [error for status in (await fleet.modules.statuses()).values() for error in status.load_errors]


async def _reloaded(settings: Settings, seconds: float) -> "Sequence[ReloadAnswer]":
    from toolfleet_registry.directory.requests import reload_tools

    async with progress("Asking the hosts"):
        return await reload_tools(settings, seconds=seconds)


def _listed_at(gateway: Gateway) -> tuple[list[ToolDefinition], dict[str, ModuleStatus]]:
    """Return the tools of the key, and the statuses of their modules, in a fleet's form."""
    found, query = list[dict[str, Any]](), dict[str, Any](limit=_PAGE)
    while True:
        page = gateway.get("/tools", query)
        found += page["tools"]
        if page.get("next") is None:
            break
        query["cursor"] = page["next"]
    return [ToolDefinition.model_validate(each) for each in found], _statuses(gateway, found)


def _found_at(
    gateway: Gateway, words: str, tags: list[str], limit: int
) -> tuple[list[ToolDefinition], dict[str, ModuleStatus]]:
    """Return the tools of the key with such words and tags, the best first, and the statuses of their modules."""
    tools = gateway.get("/tools", {"q": words or None, "tag": tags or None, "limit": limit})["tools"]
    return [ToolDefinition.model_validate(each) for each in tools], _statuses(gateway, tools)


def _reloaded_at(gateway: Gateway) -> "list[ReloadAnswer]":
    """Return the hosts' answers, by module; unfinished ones first."""
    from toolfleet_registry.directory.requests import ReloadAnswer

    report = gateway.post("/tools/reload", seconds=_RELOAD_SECONDS)
    pending = [ReloadAnswer(module=module) for module in report["pending"]]
    if not report["hosts"] > len(pending):
        return pending
    errors = [ToolLoadError.model_validate(each) for each in report["errors"]]
    return [*pending, ReloadAnswer(module="all", is_done=True, tools=report["count"], errors=errors)]


def _statuses(gateway: Gateway, tools: list[dict[str, Any]]) -> dict[str, ModuleStatus]:
    sources = [
        ToolSource(tool_name=each["name"], file=each["source"], python_module=each["module"], digest="")
        for each in tools
        if each["source"] != "programmatic"
    ]
    statuses = dict[str, ModuleStatus]()
    for each in gateway.get("/modules")["modules"]:
        known = {name: each[name] for name in ("module", "ok", "tools", "age_seconds", "is_stale") if name in each}
        errors = tuple(ToolLoadError.model_validate(one) for one in each.get("load_errors", ()))
        own = tuple(source for source in sources if source.tool_name.startswith(f"{each['module']}."))
        statuses[each["module"]] = ModuleStatus(**known, load_errors=errors, sources=own)
    return statuses
