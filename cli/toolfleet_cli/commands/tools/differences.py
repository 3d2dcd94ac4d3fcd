"""Shows offers of modules that are not in effect, and closed tools: `toolfleet tools diff`, and `list --closed`."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeAlias, get_args

import typer

from toolfleet_cli.commands.tools.door import Tools, tools_of
from toolfleet_cli.console.output import add_row, age, note, say, say_json, show_table, table
from toolfleet_cli.console.tool_states import PendingTool
from toolfleet_cli.processes.completion import complete_modules_and_tools
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway
from toolfleet_registry.contracts.event_kinds import FindingKind
from toolfleet_registry.manifests.overrides import Pending
from toolfleet_registry.manifests.specs import RegistryEvent
from toolfleet_registry.manifests.versions import is_later

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_Stale: TypeAlias = Mapping[str, float]
"""Modules whose news is too old, and how old it is, in seconds."""

_CODE = "code_digest"
_SHOWN_DIGITS = 12  # of a digest
_STATES: Mapping[Pending, str] = {
    "drifted": "the registered one stays in effect",
    "withheld": "nobody may use it",
    "rolled_back": "the one that an operator has rolled back to stays in effect",
    "changed": "it is served, and shown as changed",
}
_UNTIL: Mapping[Pending, str] = {
    "drifted": "it is approved",
    "withheld": "it is approved",
    "rolled_back": "it is approved or a later version comes",
    "changed": "it is approved",
}
_KINDS = ("added", "changed", "removed", "drifted")


def register(app: typer.Typer) -> None:
    """Give the group the command."""
    app.command()(over_fleet(diff))


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
    tools = tools_of(gateway)
    differences = tools.pending(None if name is None else name.partition(".")[0])
    (events, counted), stale = tools.history(), tools.stale()
    differences = [one for one in differences if _is_of(one.tool_name, name)]
    events = [event for event in events if _is_of(event.tool_name, name) and event.kind not in get_args(FindingKind)]
    events = events[-last:] if last else []
    if as_json:
        pending = [_as_json(one) | _mark(one.tool_name, stale) for one in differences]
        say_json({"pending": pending, "events": [e.model_dump(mode="json") for e in events], "counts": counted})
        return
    for one in differences:
        _print(one, stale)
    if not differences:
        note("Nothing waits for an approval; `toolfleet tools list --closed` shows what nobody may use.")
    if events:
        _print_events(events)
        say("\nFound until now: " + ", ".join(f"{counted.get(kind, 0)} {kind}" for kind in _KINDS))


def show_closed(tools: Tools, *, as_json: bool) -> None:
    """Show the tools that no caller may use now."""
    closed, stale = tools.closed(), tools.stale()
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


def _stale_note(tool_name: str, stale: _Stale) -> str:
    """Return the age of the module's manifest, if it is too old."""
    module = tool_name.partition(".")[0]
    return f"stale ({age(stale[module])})" if module in stale else ""


def _mark(tool_name: str, stale: _Stale) -> dict[str, bool]:
    return {"is_stale": True} if tool_name.partition(".")[0] in stale else {}


def _is_of(tool_name: str, name: str | None) -> bool:
    return name is None or tool_name == name or tool_name.partition(".")[0] == name


def _print(one: PendingTool, stale: _Stale) -> None:
    fields = one.fields
    is_code_only = not one.is_new and fields.keys() == {_CODE}
    what = "code changed" if is_code_only else "new" if one.is_new else "changed"
    versions = "" if one.is_new else f"{_version(one)}; "
    state = _STATES[one.kind]
    age_of_it = _stale_note(one.tool_name, stale)
    old = age_of_it and f"{age_of_it}; "
    digest = f"{versions}{old}digest {short_digest(one.digest)}"
    kind = "in effect" if one.kind == "changed" else one.kind.replace("_", " ")
    say(f"{one.tool_name}: {kind}, {what} ({digest}); {state} until {_UNTIL[one.kind]}")
    for name, (before, after) in fields.items():
        if name == _CODE and before and after:
            more = ", and nothing else" if is_code_only else ""
            say(f"  code changed: {short_digest(before)} was registered, {short_digest(after)} is offered{more}")
            continue
        say(f"  {name}")
        for line in _lines(before, after):
            say(f"    {line}")
    say("")


def _version(one: PendingTool) -> str:
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


def _print_events(events: Iterable[RegistryEvent]) -> None:
    shown = table("WHEN", "WHAT", "TOOL", "VERSION")
    for event in events:
        add_row(
            shown, f"{event.at:%Y-%m-%d %H:%M:%S}Z", event.kind.replace("_", " "), event.tool_name, event.version or "-"
        )
    show_table(shown)


def _as_json(one: PendingTool) -> dict[str, Any]:
    fields = {name: {"registered": before, "offered": after} for name, (before, after) in one.fields.items()}
    return {"name": one.tool_name, "kind": one.kind, "digest": one.digest, "fields": fields}


def short_digest(digest: str) -> str:
    """The beginning of a digest, which an approval may name."""
    return digest[: len("sha256:") + _SHOWN_DIGITS]
