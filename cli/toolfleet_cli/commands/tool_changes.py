"""Shows which tools are in effect and what is offered instead, and changes that: `toolfleet tools diff`, `versions`, `approve` and others."""

import asyncio
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args

import typer

from toolfleet_cli.console.output import add_row, age, note, progress, say, say_json, show_table, table
from toolfleet_cli.operations import ask
from toolfleet_cli.processes.completion import complete_modules, complete_modules_and_tools, complete_tools
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway
from toolfleet_registry.contracts.tool_definition import FindingKind
from toolfleet_registry.manifests.specs import is_later
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet_tasks.resources.operation import ResourceOperation
    from toolfleet_tasks.resources.tools import ShownDifference, ShownToolEvent, ShownVersion

ToolArgument = Annotated[str, typer.Argument(metavar="MODULE.TOOL", autocompletion=complete_tools)]
ToolArguments = Annotated[list[str], typer.Argument(metavar="MODULE.TOOL...", autocompletion=complete_tools)]
ModuleArgument = Annotated[str, typer.Argument(metavar="MODULE", autocompletion=complete_modules)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_Stale: TypeAlias = Mapping[str, float]
"""Modules whose manifest is too old, and its age in seconds."""

_CODE = "code_digest"
_SHOWN_DIGITS = 12  # of a digest
_STATES: Mapping[str, str] = {
    "drifted": "the registered one stays in effect",
    "withheld": "nobody may use it",
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


def register(app: typer.Typer) -> None:
    """Give the group the commands."""
    for command in (diff, approve, pin, unpin, disable, enable, forget, versions, rollback):
        app.command()(over_fleet(command))
    app.command()(adopt_registry)


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
    from toolfleet_tasks.resources import tools

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
        say_json({"pending": pending, "events": [each.model_dump(mode="json") for each in events], "counts": counted})
        return
    for one in differences:
        _print(one, stale)
    if not differences:
        note("Nothing waits for an approval; `toolfleet tools list --closed` shows what nobody may use.")
    if events:
        _print_events(events)
        say("\nFound until now: " + ", ".join(f"{counted.get(kind, 0)} {kind}" for kind in _KINDS))


def show_closed(gateway: Gateway | None, *, as_json: bool) -> None:
    """Show the tools that no caller may use now."""
    from toolfleet_tasks.resources import tools

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
    from toolfleet_tasks.resources import tools

    for name in names:
        pending = [name]
        if "." not in name:
            found = ask(tools.get_tool_state, gateway, query={"module": name})
            pending = [one.tool_name for one in found.pending]
        if not pending:
            note(f"There is nothing to approve of module {name!r}.")
        for tool_name in pending:
            approved = ask(tools.approve_tool, gateway, path={"name": tool_name}, body={"digest": digest}, by=by)
            say(f"{tool_name}: approved with digest {_short_digest(approved.digest)}")


def pin(module: ModuleArgument, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Approve a module's tools as they are in effect now, and nothing that it offers otherwise from now on."""
    from toolfleet_tasks.resources import tools

    digests = ask(tools.pin_module, gateway, path={"module": module}, by=by).digests
    differences = ask(tools.get_tool_state, gateway, query={"module": module}).pending
    shown = table("TOOL", "DIGEST")
    for name, digest in sorted(digests.items()):
        add_row(shown, name, digest)
    show_table(shown)
    for one in differences:
        note(f"{one.tool_name} is withheld: it is offered otherwise than it was in effect.")


def unpin(module: ModuleArgument, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Take in what a module offers, now and from now on, without an approval."""
    from toolfleet_tasks.resources import tools

    ask(tools.unpin_module, gateway, path={"module": module}, by=by)
    say(f"{module}: not pinned any more")


def disable(names: ToolArguments, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Disable a tool for all callers, until it is enabled."""
    from toolfleet_tasks.resources import tools

    _each(names, tools.disable_tool, "disabled", gateway, by)


def enable(names: ToolArguments, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Take a disabling back."""
    from toolfleet_tasks.resources import tools

    _each(names, tools.enable_tool, "enabled", gateway, by)


def forget(names: ToolArguments, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Let the registry know nothing of a tool, as when it cannot read it: what is offered of it now is new, and enabled."""
    from toolfleet_tasks.resources import tools

    _each(names, tools.forget_tool, "forgotten", gateway, by)


def adopt_registry() -> None:
    """Make the registry that is set up here the fleet's, in place of another one: what was decided there holds no more."""
    asyncio.run(_adopt())
    say("This registry is the fleet's now; `toolfleet modules refresh` takes into it what modules offer.")


def versions(name: ToolArgument, *, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show a tool's last specifications, the latest first: the registry keeps 20."""
    from toolfleet_tasks.resources import tools

    found = ask(tools.list_tool_versions, gateway, path={"name": name}).versions
    if as_json:
        say_json([_version_as_json(one) for one in found])
        return
    shown = table("VERSION", "SINCE", "", "DESCRIPTION")
    for one in found:
        first_line = (one.spec.description or "").partition("\n")[0]
        state = _state_of(one) if one.is_in_force else ""
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
    from toolfleet_tasks.resources import tools

    done = ask(tools.roll_back_tool, gateway, path={"name": name}, body={"version": version}, by=by)
    say(f"{name}: version {version} is in force")
    if done.rolled_back_from:
        note(
            f"Until its module offers a later version than {done.rolled_back_from}, or `toolfleet tools approve {name}`."
        )
        _warn_of_older_workers(done.undone_by)


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
        ask(operation, gateway, path={"name": name}, by=by)
        say(f"{name}: {done}")


def _stale_note(tool_name: str, stale: _Stale) -> str:
    """Return the age of the module's manifest, if it is too old."""
    module = tool_name.partition(".")[0]
    return f"stale ({age(stale[module])})" if module in stale else ""


def _mark(tool_name: str, stale: _Stale) -> dict[str, bool]:
    return {"is_stale": True} if tool_name.partition(".")[0] in stale else {}


def _is_of(tool_name: str, name: str | None) -> bool:
    return name is None or tool_name == name or tool_name.partition(".")[0] == name


def _print(one: "ShownDifference", stale: _Stale) -> None:
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


def _versions_of(one: "ShownDifference") -> str:
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
    return (value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)).splitlines()


def _print_events(events: "Iterable[ShownToolEvent]") -> None:
    shown = table("WHEN", "WHAT", "TOOL", "VERSION")
    for event in events:
        add_row(
            shown, f"{event.at:%Y-%m-%d %H:%M:%S}Z", event.kind.replace("_", " "), event.tool_name, event.version or "-"
        )
    show_table(shown)


def _difference_as_json(one: "ShownDifference") -> dict[str, Any]:
    fields = {name: {"registered": before, "offered": after} for name, (before, after) in one.fields.items()}
    return {"name": one.tool_name, "kind": one.kind, "digest": one.digest, "fields": fields}


def _short_digest(digest: str) -> str:
    """Return the beginning of a digest, which an approval may name."""
    return digest[: len("sha256:") + _SHOWN_DIGITS]


def _warn_of_older_workers(older: list[str]) -> None:
    """Workers of a release that knows no rollback register what a module offers as it comes."""
    if older:
        many = f" and {len(older) - _MOST_NAMED} more" if len(older) > _MOST_NAMED else ""
        names = ", ".join(older[:_MOST_NAMED])
        text = f"Workers of an earlier release undo it when they next ask the module: {names}{many}. Upgrade them, then roll back again."
        note(text, style="yellow")


def _state_of(one: "ShownVersion") -> str:
    words = "in force" if one.rolled_back_from is None else f"in force, rolled back from {one.rolled_back_from}"
    return words if one.enabled else f"{words}, disabled"


def _version_as_json(one: "ShownVersion") -> dict[str, Any]:
    return {
        "version": one.version,
        "digest": one.digest,
        "created_at": one.created_at,
        "is_in_force": one.is_in_force,
        "rolled_back_from": one.rolled_back_from,
        "spec": one.spec.model_dump(mode="json"),
    }
