"""Shows and changes what operators decide about tools: `toolfleet tools diff`, `approve`, `pin`, `disable` and their opposites."""

import asyncio
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, get_args

import typer

from toolfleet_cli.commands.operators import operate
from toolfleet_cli.console.output import add_row, age, note, progress, say, say_json, show_table, table
from toolfleet_cli.processes.completion import complete_modules, complete_modules_and_tools, complete_tools
from toolfleet_registry.catalog.operator import Difference, Operator
from toolfleet_registry.catalog.operator import adopt_registry as adopt
from toolfleet_registry.contracts.event_kinds import FindingKind
from toolfleet_registry.manifests.overrides import Pending
from toolfleet_registry.manifests.specs import RegistryEvent
from toolfleet_registry.manifests.versions import is_later
from toolfleet_registry.settings import load_settings

ToolArgument = Annotated[list[str], typer.Argument(metavar="MODULE.TOOL...", autocompletion=complete_tools)]
ModuleArgument = Annotated[str, typer.Argument(metavar="MODULE", autocompletion=complete_modules)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_Stale = Mapping[str, float]
"""Modules whose news is too old, and how old it is, in seconds."""

_CODE = "code_digest"
_SHOWN_DIGITS = 12  # of a digest
_STATES: Mapping[Pending, str] = {
    "drifted": "the registered one stays in effect",
    "withheld": "nobody may use it",
    "rolled_back": "the one that an operator has rolled back to stays in effect",
}
_UNTIL: Mapping[Pending, str] = {
    "drifted": "it is approved",
    "withheld": "it is approved",
    "rolled_back": "it is approved or a later version comes",
}
_KINDS = ("added", "changed", "removed", "drifted")


def register(app: typer.Typer) -> None:
    """Give the group the commands."""
    for command in (diff, approve, pin, unpin, disable, enable, forget, adopt_registry):
        app.command()(command)


def diff(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE | MODULE.TOOL]", help="Only of this one.", autocompletion=complete_modules_and_tools
        ),
    ] = None,
    *,
    last: Annotated[int, typer.Option(metavar="N", min=0, max=10_000, help="Show so many changes that happened.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show what modules offer that is not in effect, and the last changes that took effect. Asks no module."""
    module = None if name is None else name.partition(".")[0]

    async def ask(operator: Operator) -> tuple[list[Difference], list[RegistryEvent], dict[str, int], _Stale]:
        found, events = await operator.differences(module), await operator.events(10_000)
        return found, events, await operator.counted(), await operator.stale()

    differences, events, counted, stale = operate(ask)
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
) -> None:
    """Let what a module offers of a tool take effect."""
    if digest is not None and (len(names) > 1 or "." not in names[0]):
        raise typer.BadParameter("--digest is of one tool.")

    async def work(operator: Operator) -> None:
        for name in names:
            pending = [name] if "." in name else [one.tool_name for one in await operator.differences(name)]
            if not pending:
                note(f"There is nothing to approve of module {name!r}.")
            for tool_name in pending:
                found = await operator.approve(tool_name, digest=digest)
                say(f"{tool_name}: approved with digest {_short(found.digest)}")

    operate(work)


def pin(module: ModuleArgument) -> None:
    """Approve a module's tools as they are in effect now, and nothing that it offers otherwise from now on."""

    async def work(operator: Operator) -> tuple[dict[str, str], list[Difference]]:
        return await operator.pin(module), await operator.differences(module)

    digests, differences = operate(work)
    shown = table("TOOL", "DIGEST")
    for name, digest in sorted(digests.items()):
        add_row(shown, name, digest)
    show_table(shown)
    for one in differences:
        note(f"{one.tool_name} is withheld: it is offered otherwise than it was in effect.")


def unpin(module: ModuleArgument) -> None:
    """Take in what a module offers, now and from now on, without an approval."""
    operate(lambda operator: operator.unpin(module))
    say(f"{module}: not pinned any more")


def disable(names: ToolArgument) -> None:
    """Let nobody use a tool, whatever becomes of it, until it is enabled."""

    async def work(operator: Operator) -> None:
        for name in names:
            await operator.disable(name)
            say(f"{name}: disabled")

    operate(work)


def enable(names: ToolArgument) -> None:
    """Take a disabling back."""

    async def work(operator: Operator) -> None:
        for name in names:
            await operator.enable(name)
            say(f"{name}: enabled")

    operate(work)


def forget(names: ToolArgument) -> None:
    """Let the registry know nothing of a tool, as when it cannot read it: what is offered of it now is new, and enabled."""

    async def work(operator: Operator) -> None:
        for name in names:
            await operator.forget(name)
            say(f"{name}: forgotten")

    operate(work)


def adopt_registry() -> None:
    """Make the registry that is set up here the fleet's, in place of another one: what was decided there holds no more."""

    async def run() -> None:
        async with progress("Asking the registry"):
            await adopt(load_settings())

    asyncio.run(run())
    say("This registry is the fleet's now; `toolfleet modules refresh` takes into it what modules offer.")


def show_closed(*, as_json: bool) -> None:
    """Show the tools that nobody may use now."""

    async def ask(operator: Operator) -> tuple[dict[str, str], _Stale]:
        return await operator.closed(), await operator.stale()

    closed, stale = operate(ask)
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


def closed_because(tool_name: str) -> str | None:
    """Why nobody may use the tool now; `None` if that is not so."""
    return operate(lambda operator: operator.closed()).get(tool_name)


def _stale_note(tool_name: str, stale: _Stale) -> str:
    """How old the news of the tool's module is, if that is too old."""
    module = tool_name.partition(".")[0]
    return f"stale ({age(stale[module])})" if module in stale else ""


def _mark(tool_name: str, stale: _Stale) -> dict[str, bool]:
    return {"is_stale": True} if tool_name.partition(".")[0] in stale else {}


def _is_of(tool_name: str, name: str | None) -> bool:
    return name is None or tool_name == name or tool_name.partition(".")[0] == name


def _print(one: Difference, stale: _Stale) -> None:
    fields = one.fields()
    is_code_only = one.registered is not None and fields.keys() == {_CODE}
    what = "code changed" if is_code_only else "changed" if one.registered else "new"
    versions = f"{_version(one)}; " if one.registered else ""
    state = _STATES[one.kind]
    age_of_it = _stale_note(one.tool_name, stale)
    old = age_of_it and f"{age_of_it}; "
    digest = f"{versions}{old}digest {_short(one.digest)}"
    say(f"{one.tool_name}: {one.kind.replace('_', ' ')}, {what} ({digest}); {state} until {_UNTIL[one.kind]}")
    for name, (before, after) in fields.items():
        if name == _CODE and before and after:
            more = ", and nothing else" if is_code_only else ""
            say(f"  code changed: {_short(before)} was registered, {_short(after)} is offered{more}")
            continue
        say(f"  {name}")
        for line in _lines(before, after):
            say(f"    {line}")
    say("")


def _version(one: Difference) -> str:
    before, after = one.registered.version if one.registered else None, one.offered.version
    if before == after:
        return f"version {after}, as before" if after else "without a version"
    older = ", which is older" if before and after and is_later(before, after) else ""
    return f"version {before or 'none'} to {after or 'none'}{older}"


def _lines(before: Any, after: Any) -> Iterator[str]:
    """What was, and what is instead, as lines of text."""
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


def _as_json(one: Difference) -> dict[str, Any]:
    fields = {name: {"registered": before, "offered": after} for name, (before, after) in one.fields().items()}
    return {"name": one.tool_name, "kind": one.kind, "digest": one.digest, "fields": fields}


def _short(digest: str) -> str:
    return digest[: len("sha256:") + _SHOWN_DIGITS]
