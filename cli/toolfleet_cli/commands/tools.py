"""Lists the tools that a caller may use, has hosts read their files again, and changes which tools are in effect: `toolfleet tools`."""

import asyncio
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias, get_args

import typer

from toolfleet_cli.commands.completion import complete_modules, complete_modules_and_tools, complete_tools
from toolfleet_cli.console import (
    add_row,
    age,
    fail,
    indented,
    note,
    progress,
    say,
    say_json,
    show_load_errors,
    show_rows,
    show_table,
    table,
)
from toolfleet_cli.remote import (
    AgentOption,
    Gateway,
    JsonOption,
    ModulesOption,
    PermissionOption,
    UserOption,
    ask,
    caller_at,
    over_fleet,
    refuse_unknown,
)
from toolfleet_cli.resources import modules, tools
from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.contracts.tool_definition import FindingKind, ToolLoadError, ToolSource
from toolfleet_registry.errors import NoSuchEntry
from toolfleet_registry.policy.turns import words_of
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_registry.specs import effect_of, is_later

if TYPE_CHECKING:
    from toolfleet_registry.directory.requests import ReloadAnswer
    from toolfleet_tasks.resources.operation import ResourceOperation

app = typer.Typer(no_args_is_help=True)


_PAGE = 1_000  # tools of one answer of a gateway
_RELOAD_SECONDS = 30.0  # beyond the ten that a gateway waits

ToolArgument = Annotated[str, typer.Argument(metavar="MODULE.TOOL", autocompletion=complete_tools)]
ToolArguments = Annotated[list[str], typer.Argument(metavar="MODULE.TOOL...", autocompletion=complete_tools)]

_Stale: TypeAlias = Mapping[str, float | None]
"""Modules whose manifest is too old, and its age in seconds."""

_CODE = "code_digest"
_SHOWN_DIGITS = 12  # of a digest
_STATES: Mapping[str, str] = {
    "drifted": "the registered one stays in effect",
    "withheld": "no caller may use it",
    "rolled_back": "the one that an operator has rolled back to stays in effect",
    "changed": "it is served, and shown as changed",
}
_UNTIL: Mapping[str, str] = {
    "drifted": "it is approved",
    "withheld": "it is approved",
    "rolled_back": "it is approved or a later version comes",
    "changed": "it is approved",
}
_KINDS = ("added", "changed", "removed", "drifted")
_MOST_EVENTS = 10_000  # as an answer has at most
_MOST_NAMED = 5


@app.command("list")
@over_fleet
def list_(
    *,
    user: UserOption = None,
    permission: PermissionOption = "owner",
    modules: ModulesOption = None,
    agent: AgentOption = None,
    closed: Annotated[
        bool, typer.Option("--closed", help="List the tools that no caller may use now, and why.")
    ] = False,
    errors: Annotated[
        bool,
        typer.Option(
            "--errors",
            help="Show which files of tool folders, and operations of documents, are not served as they stand. Exits with 1 if there are more than notes.",
        ),
    ] = False,
    ignore_errors: Annotated[
        bool, typer.Option("--ignore-errors", help="Exit with 0 also where files of tool folders do not load.")
    ] = False,
    sources: Annotated[bool, typer.Option("--sources", help="Show where each tool of a folder stands.")] = False,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List the tools that a caller may use. Exits with 1 where files of tool folders do not load as they stand."""
    if errors:
        _show_errors(gateway, as_json=as_json)
    if closed:
        _show_closed(gateway, as_json=as_json)
        return
    caller = caller_at(gateway, user, permission, modules, agent)
    (stale, load_errors), tools = _known(gateway, caller), _all(gateway, caller)
    if not as_json and not tools:
        note("There are no tools for this caller; `toolfleet modules list` shows the modules.")
    else:
        _show_all(tools, stale, as_json=as_json, with_sources=sources)
    has_errors = show_load_errors(load_errors)
    raise typer.Exit(1 if has_errors and not ignore_errors else 0)


@app.command()
@over_fleet
def search(
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...", help="Or the beginning of one.")] = None,
    *,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Only with this tag; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many.")] = 10,
    user: UserOption = None,
    permission: PermissionOption = "owner",
    modules: ModulesOption = None,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """Find the tools that a caller may use by words and tags, the best first."""
    caller = caller_at(gateway, user, permission, modules)
    stale, _ = _known(gateway, caller)
    found, _ = _page(gateway, caller, q=" ".join(words or ()) or None, tag=tag or None, limit=limit)
    if not as_json and not found:
        note("No tool of this caller has such words and tags.")
        return
    _show_all(found, stale, as_json=as_json)


@app.command()
@over_fleet
def show(
    name: ToolArgument,
    *,
    versions: Annotated[
        bool,
        typer.Option(
            "--versions", help="Show its last specifications instead, the latest first: the registry keeps 20."
        ),
    ] = False,
    user: UserOption = None,
    permission: PermissionOption = "owner",
    modules: ModulesOption = None,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """Show one tool: what it does and which arguments it takes."""
    if versions:
        _show_versions(name, gateway, as_json=as_json)
        return
    caller = caller_at(gateway, user, permission, modules)
    stale, _ = _known(gateway, caller)
    try:
        tool = ask(tools.get_tool, gateway, name, caller=caller)
    except NoSuchEntry:
        if gateway is not None:
            raise
        why = ask(tools.get_tool_state, None).closed.get(name)
        fail(why or f"Unknown tool: {name}. `toolfleet tools list` shows those that there are.", code=1)
    if as_json:
        say_json(_as_json(tool, stale))
    else:
        _print(tool, stale)


@app.command()
@over_fleet
def reload(
    *,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", min=1, max=600, help="Wait so long at most.")] = 60,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """Have all hosts of tool folders read their files again, also those that did not load before and have not changed.

    Exits with 1 where files do not load as they stand, no host is there, or one does not come back in time.
    """
    answers = asyncio.run(_reloaded(load_settings(), seconds)) if gateway is None else _reloaded_at(gateway)
    if not answers:
        fail("No host of a tool folder has answered: none is running, or none has this fleet's Redis.", code=1)
    if as_json:
        say_json(answers)
    else:
        for each in answers:
            say(f"{each.module}: {each.tools} tools" if each.is_done else f"{each.module}: still at it")
        done = [each for each in answers if each.is_done]
        say(f"{sum(each.tools for each in done)} tools, {sum(len(each.errors) for each in done)} errors")
    has_errors = show_load_errors([error for each in answers for error in each.errors])
    raise typer.Exit(1 if has_errors or not all(each.is_done for each in answers) else 0)


@app.command()
@over_fleet
def diff(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE | MODULE.TOOL]", help="Only of this one.", autocompletion=complete_modules_and_tools
        ),
    ] = None,
    *,
    last: Annotated[int, typer.Option(metavar="N", min=0, max=10_000, help="Show so many changes that happened.")] = 10,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """Show what modules offer that is not in effect or not accepted, and the last changes that took effect. Asks no module."""
    module = None if name is None else name.partition(".")[0]
    state = ask(tools.get_tool_state, gateway, query={"module": module})
    history = ask(tools.list_tool_events, gateway, query={"limit": _MOST_EVENTS})
    stale, counted = state.stale, history.found
    differences = [one for one in state.pending if _is_of(one.tool_name, name)]
    events = [
        event for event in history.events if _is_of(event.tool_name, name) and event.kind not in get_args(FindingKind)
    ]
    events = events[-last:] if last else []
    if as_json:
        pending = [_difference_as_json(one) | _mark(one.tool_name, stale) for one in differences]
        say_json({"pending": pending, "events": events, "counts": counted})
        return
    for one in differences:
        _print_difference(one, stale)
    if not differences:
        note("Nothing waits for an approval; `toolfleet tools list --closed` shows what no caller may use.")
    if events:
        show_rows(
            "WHEN,WHAT,TOOL,VERSION",
            events,
            lambda one: (f"{one.at:%Y-%m-%d %H:%M:%S}Z", one.kind.replace("_", " "), one.tool_name, one.version or "-"),
        )
        say("\nFound until now: " + ", ".join(f"{counted.get(kind, 0)} {kind}" for kind in _KINDS))


@app.command()
@over_fleet
def approve(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE.TOOL...",
            help="Or a module: all that is pending there.",
            autocompletion=complete_modules_and_tools,
        ),
    ],
    *,
    digest: Annotated[str | None, typer.Option(help="Only if it is offered with this one, as `diff` shows it.")] = None,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Let what a module offers of a tool take effect."""
    if digest is not None and (len(names) > 1 or "." not in names[0]):
        raise typer.BadParameter("--digest is of one tool.")

    for name in names:
        pending = [name]
        if "." not in name:
            found = ask(tools.get_tool_state, gateway, query={"module": name})
            pending = [one.tool_name for one in found.pending]
        if not pending:
            note(f"There is nothing to approve of module {name!r}.")
        for tool_name in pending:
            approved = ask(tools.approve_tool, gateway, tool_name, body={"digest": digest}, by=by)
            say(f"{tool_name}: approved with digest {_short_digest(approved.digest)}")


@app.command()
@over_fleet
def pin(
    module: Annotated[str, typer.Argument(metavar="MODULE", autocompletion=complete_modules)],
    *,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take in what it offers again, now and from now on, without an approval.")
    ] = False,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Approve a module's tools as they are in effect now, and nothing that it offers otherwise from now on."""
    if undo:
        ask(tools.unpin_module, gateway, module, by=by)
        say(f"{module}: not pinned any more")
        return
    digests = ask(tools.pin_module, gateway, module, by=by).digests
    differences = ask(tools.get_tool_state, gateway, query={"module": module}).pending
    show_rows("TOOL,DIGEST", sorted(digests.items()), lambda one: one)
    for one in differences:
        note(f"{one.tool_name} is withheld: it is offered otherwise than it was in effect.")


@app.command()
@over_fleet
def disable(names: ToolArguments, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Disable a tool for all callers, until it is enabled."""
    _each(names, tools.disable_tool, "disabled", gateway, by)


@app.command()
@over_fleet
def enable(names: ToolArguments, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Enable a disabled tool."""
    _each(names, tools.enable_tool, "enabled", gateway, by)


@app.command(hidden=True)
@over_fleet
def forget(names: ToolArguments, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Let the registry know nothing of a tool, as when it cannot read it: what is offered of it now is new, and enabled."""
    _each(names, tools.forget_tool, "forgotten", gateway, by)


@app.command()
@over_fleet
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
    done = ask(tools.roll_back_tool, gateway, name, body={"version": version}, by=by)
    say(f"{name}: version {version} is in force")
    if done.rolled_back_from:
        note(
            f"Until its module offers a later version than {done.rolled_back_from}, or `toolfleet tools approve {name}`."
        )
        _warn_of_older_workers(done.undone_by)


@app.command(hidden=True)
def adopt_registry() -> None:
    """Make the registry that is set up here the fleet's, in place of another one: what was decided there holds no more."""
    asyncio.run(_adopt())
    say("This registry is the fleet's now; `toolfleet modules refresh` takes into it what modules offer.")


def _show_errors(gateway: Gateway | None, *, as_json: bool) -> NoReturn:
    """Show what is not served as it stands, and exit."""
    found = ask(tools.list_tool_errors, gateway).errors
    if as_json:
        say_json([each.model_dump(mode="json", exclude={"module"}) for each in found])
    elif not found:
        note("Everything is served as it stands.")
    raise typer.Exit(1 if show_load_errors(found) else 0)


def _show_closed(gateway: Gateway | None, *, as_json: bool) -> None:
    """Show the tools that no caller may use now."""
    state = ask(tools.get_tool_state, gateway)
    closed, stale = state.closed, state.stale
    if as_json:
        say_json([{"name": name, "reason": reason} | _mark(name, stale) for name, reason in closed.items()])
        return
    if not closed:
        note("No tool is closed.")
        return
    notes = {name: _stale_note(name, stale) for name in closed}
    more = ("NOTE",) if any(notes.values()) else ()
    shown = table("TOOL", *more, "REASON")
    for name, reason in closed.items():
        add_row(shown, name, *((notes[name] or "-",) if more else ()), reason)
    show_table(shown)


def _known(gateway: Gateway | None, caller: Caller | None) -> "tuple[_Stale, list[tools.ShownLoadError]]":
    """Return what is known of the modules. Raises `BadParameter` if the caller names one that does not exist."""
    found = ask(modules.list_modules, gateway).modules
    if caller is not None:
        refuse_unknown(caller, [each.module for each in found])
    errors = [error for each in found for error in each.load_errors or ()]
    return {each.module: each.age_seconds for each in found if each.is_stale}, errors


def _all(gateway: Gateway | None, caller: Caller | None) -> "list[tools.ShownTool]":
    found, following = _page(gateway, caller, limit=_PAGE)
    while following is not None:
        more, following = _page(gateway, caller, limit=_PAGE, cursor=following)
        found += more
    return found


def _page(gateway: Gateway | None, caller: Caller | None, **query: Any) -> "tuple[list[tools.ShownTool], str | None]":
    """Return tools that the caller, or the holder of a gateway's key, may use; and the cursor of those that follow."""
    page = ask(tools.list_tools, gateway, query=query, caller=caller)
    shown = tools.ShownTool
    return [each if isinstance(each, shown) else shown.model_validate(each) for each in page.tools], page.next


def _show_all(tools: "Sequence[tools.ShownTool]", stale: _Stale, *, as_json: bool, with_sources: bool = False) -> None:
    if as_json:
        say_json([_as_json(tool, stale) | (_place(tool.file) if with_sources else {}) for tool in tools])
        return
    notes = {tool.name: _notes(tool, stale) for tool in tools}
    more = ("NOTE",) if any(notes.values()) else ()
    place_columns = ("SOURCE", "MODULE", "VERSION") if with_sources else ()
    shown = table("TOOL", "PERMISSION", "EFFECT", *more, *place_columns, "DESCRIPTION")
    for tool in tools:
        first_line = tool.description.partition("\n")[0]
        marks = (notes[tool.name] or "-",) if more else ()
        place = tool.file
        known = (place.file, place.python_module, tool.version or "-") if place else ("-", "-", tool.version or "-")
        where = known if with_sources else ()
        add_row(shown, tool.name, tool.required_permission, effect_of(tool) or "-", *marks, *where, first_line)
    show_table(shown)


def _place(place: ToolSource | None) -> dict[str, Any]:
    return {} if place is None else {"source": place.model_dump(exclude={"tool_name"})}


def _as_json(tool: "tools.ShownTool", stale: _Stale) -> dict[str, Any]:
    shown = tool.model_dump(mode="json", exclude_none=True, exclude={"source", "module"})
    return shown | _mark(tool.name, stale)


def _notes(tool: ToolDefinition, stale: _Stale) -> str:
    return ", ".join(filter(None, (_stale_note(tool.name, stale), "deprecated" * tool.deprecated)))


def _print(tool: ToolDefinition, stale: _Stale) -> None:
    say(f"{tool.name}\n\n{tool.description}\n")
    facts = {
        "permission": tool.required_permission,
        "effect": effect_of(tool),
        "limit": tool.timeout_seconds and f"{tool.timeout_seconds:g} s",
        "version": tool.version,
        "cost": tool.cost,
        "runs": words_of(tool),
        "tags": ", ".join(tool.tags),
        "deprecated": "yes" if tool.deprecated else None,
        "stale": _age_of(tool.name, stale),
    }
    say("  ".join(f"{name}: {value}" for name, value in facts.items() if value))
    if tool.input_schema is not None:
        say(f"\nArguments (JSON Schema):\n{indented(tool.input_schema)}")
    elif tool.parameters:
        say("")
        show_rows(
            "ARGUMENT,TYPE,REQUIRED,DESCRIPTION",
            tool.parameters,
            lambda one: (
                one.name,
                one.type,
                "yes" if one.required else "no",
                (
                    one.description
                    + ("" if one.enum is None else f" One of {json.dumps(one.enum, ensure_ascii=False)}.")
                ),
            ),
        )


def _show_versions(name: str, gateway: Gateway | None, *, as_json: bool) -> None:
    found = ask(tools.list_tool_versions, gateway, name).versions
    if as_json:
        say_json([one.model_dump(mode="json", exclude={"enabled"}) for one in found])
    else:
        show_rows(
            "VERSION,SINCE,,DESCRIPTION",
            found,
            lambda one: (
                one.version or "-",
                one.created_at or "-",
                _state_of(one) if one.is_in_force else "",
                (one.spec.description or "").partition("\n")[0],
            ),
        )


async def _reloaded(settings: Settings, seconds: float) -> "Sequence[ReloadAnswer]":
    from toolfleet_registry.directory.requests import reload_tools

    async with progress("Asking the hosts"):
        return await reload_tools(settings, seconds=seconds)


def _reloaded_at(gateway: Gateway) -> "list[ReloadAnswer]":
    """Return the hosts' answers as a gateway tells them: unfinished ones by module, and the others together."""
    from toolfleet_registry.directory.requests import ReloadAnswer

    report = ask(tools.reload_tools, gateway, seconds=_RELOAD_SECONDS)
    pending = [ReloadAnswer(module=module) for module in report.pending]
    if not report.hosts > len(pending):
        return pending
    errors = [ToolLoadError(**each.model_dump(exclude={"module"})) for each in report.errors]
    return [*pending, ReloadAnswer(module="all", is_done=True, tools=report.count, errors=errors)]


async def _adopt() -> None:
    from toolfleet_registry.catalog.operator import adopt_registry as adopt
    from toolfleet_tasks.operations.change_trail import Actor, ChangeTrail

    settings = load_settings()
    async with (
        progress("Asking the registry"),
        ChangeTrail.of(settings, Actor.at_command_line()) as trail,
        trail.change("registry_adopted", "-"),
    ):
        await adopt(settings)


def _each(
    names: list[str],
    operation: "ResourceOperation[None, None, None]",
    done: str,
    gateway: Gateway | None,
    by: str | None,
) -> None:
    for name in names:
        ask(operation, gateway, name, by=by)
        say(f"{name}: {done}")


def _age_of(tool_name: str, stale: _Stale) -> str | None:
    """Return the age of the module's manifest, if it is too old."""
    module = tool_name.partition(".")[0]
    return age(stale[module]) if module in stale else None


def _stale_note(tool_name: str, stale: _Stale) -> str:
    found = _age_of(tool_name, stale)
    return f"stale ({found})" if found else ""


def _mark(tool_name: str, stale: _Stale) -> dict[str, bool]:
    return {"is_stale": True} if tool_name.partition(".")[0] in stale else {}


def _is_of(tool_name: str, name: str | None) -> bool:
    return name is None or tool_name == name or tool_name.partition(".")[0] == name


def _print_difference(one: "tools.ShownDifference", stale: _Stale) -> None:
    fields = one.fields
    is_code_only = not one.is_new and fields.keys() == {_CODE}
    what = "code changed" if is_code_only else "new" if one.is_new else "changed"
    versions = "" if one.is_new else f"{_versions_of(one)}; "
    state = _STATES[one.kind]
    age_of_it = _stale_note(one.tool_name, stale)
    old = age_of_it and f"{age_of_it}; "
    digest = f"{versions}{old}digest {_short_digest(one.digest)}"
    kind = "in effect" if one.kind == "changed" else one.kind.replace("_", " ")
    say(f"{one.tool_name}: {kind}, {what} ({digest}); {state} until {_UNTIL[one.kind]}")
    for name, (before, after) in fields.items():
        if name == _CODE and before and after:
            more = ", and nothing else" if is_code_only else ""
            say(f"  code changed: {_short_digest(before)} was registered, {_short_digest(after)} is offered{more}")
            continue
        say(f"  {name}")
        for line in _lines(before, after):
            say(f"    {line}")
    say("")


def _versions_of(one: "tools.ShownDifference") -> str:
    before, after = one.registered_version, one.version
    if before == after:
        return f"version {after}, as before" if after else "without a version"
    older = ", which is older" if before and after and is_later(before, after) else ""
    return f"version {before or 'none'} to {after or 'none'}{older}"


def _lines(before: Any, after: Any) -> Iterator[str]:
    """Yield the old and the new lines of text."""
    diff_lines = difflib.unified_diff(_text(before), _text(after), lineterm="", n=1)
    return (line for line in diff_lines if not line.startswith(("---", "+++", "@@")))


def _text(value: Any) -> list[str]:
    if value is None:
        return []
    return (value if isinstance(value, str) else indented(value)).splitlines()


def _difference_as_json(one: "tools.ShownDifference") -> dict[str, Any]:
    fields = {name: {"registered": before, "offered": after} for name, (before, after) in one.fields.items()}
    return {"name": one.tool_name, "kind": one.kind, "digest": one.digest, "fields": fields}


def _short_digest(digest: str) -> str:
    """Return the beginning of a digest, which an approval may name."""
    return digest[: len("sha256:") + _SHOWN_DIGITS]


def _warn_of_older_workers(older: list[str]) -> None:
    """Warn of workers of an earlier release, which register all that a module offers and so undo a rollback."""
    if older:
        many = f" and {len(older) - _MOST_NAMED} more" if len(older) > _MOST_NAMED else ""
        names = ", ".join(older[:_MOST_NAMED])
        text = f"Workers of an earlier release undo it when they next ask the module: {names}{many}. Upgrade them, then roll back again."
        note(text, style="yellow")


def _state_of(one: "tools.ShownVersion") -> str:
    words = "in force" if one.rolled_back_from is None else f"in force, rolled back from {one.rolled_back_from}"
    return words if one.enabled else f"{words}, disabled"
