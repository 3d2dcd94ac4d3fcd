"""Lists what every module offers, how old that is, and the key of each: `toolfleet modules`."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich.text import Text

from toolfleet_cli.commands.completion import complete_modules
from toolfleet_cli.console import (
    add_row,
    age,
    coloured,
    note,
    progress,
    say,
    say_json,
    show_list,
    show_rows,
    show_table,
    shown_url,
    table,
)
from toolfleet_cli.remote import Gateway, JsonOption, ask, over_fleet
from toolfleet_cli.resources import modules
from toolfleet_registry.contracts import NEVER_PROBED, ModuleStatus
from toolfleet_registry.contracts.names import LOCAL, is_module_name
from toolfleet_registry.directory.entries import AnnouncedModule, ModuleEntry
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.policy.hints import UNDECLARED_LINES
from toolfleet_registry.settings import Settings, load_settings

if TYPE_CHECKING:
    from toolfleet_registry.directory.entries import Replica

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The module's name.", autocompletion=complete_modules)
]


app = typer.Typer(no_args_is_help=True)


@app.command()
@over_fleet
def add(
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
    body = entry.model_dump(include=set(modules.NewModule.model_fields))
    lane = ask(modules.add_module, gateway, body=body, by=by).lane
    say(f"Module {name} is in the {lane} lane, at {shown_url(str(entry.url))}.")
    note("`toolfleet modules list` shows what it offers, as soon as a worker has asked it.")


@app.command()
@over_fleet
def remove(
    name: NameArgument,
    *,
    drain: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            max=86_400,
            help="Run calls that wait for so long, before the rest are ended. [30]",
        ),
    ] = None,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Remove a module from the running fleet: it takes no more calls, and what waits is run, or ended with a clear result."""
    gone = ask(modules.remove_module, gateway, name, query={"drain_seconds": drain}, by=by)
    seconds = gone.drain_seconds or 0
    say(
        f"Module {name} takes no more calls. Those that still wait in {seconds:g} s are ended: nothing of them is executed."
    )


@app.command("list")
@over_fleet
def list_(*, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show what is known of every module. Asks none of them."""
    _show_all(gateway, is_refreshed=False, as_json=as_json)


@app.command()
@over_fleet
def refresh(*, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Ask every module now for what it offers, and show what came of it."""
    _show_all(gateway, is_refreshed=True, as_json=as_json)


@app.command()
def key(
    module: Annotated[str, typer.Argument(metavar="NAME", help="The module's name.", autocompletion=complete_modules)],
    *,
    announce: Annotated[
        bool, typer.Option("--announce", help="The key with which its hosts announce it: their TOOLFLEET_ANNOUNCE_KEY.")
    ] = False,
) -> None:
    """Print the key with which a module verifies who calls it: its TOOLFLEET_MODULE_KEY. A secret of that module.

    With TOOLFLEET_SIGNING_KEYS_OLD it is one for each of the fleet's keys, with commas between them.
    """
    from toolfleet_registry.directory.hosts import announce_keys
    from toolfleet_tasks.messages.signing import module_keys

    settings = load_settings()
    if settings.signing_key is None:
        raise SettingsError("There is no signing key: set TOOLFLEET_SIGNING_KEY to the one of the fleet's workers.")
    if not is_module_name(module):
        raise SettingsError(f"Module name {module!r} may have letters, digits, '_' and '-' only.")
    if announce:
        say(announce_keys(settings.signing_keys, module))
        return
    if module not in settings.module_services:
        note(f"There is no module {module!r} in TOOLFLEET_MODULE_SERVICES here.")
    say(module_keys(settings.signing_keys, module))


def _sentence(message: str, place: tuple[int | str, ...]) -> str:
    words = message.removeprefix("Value error, ").rstrip(".")
    return f"{place[0] if place else 'The module'}: {words}."


def _show_all(gateway: Gateway | None, *, is_refreshed: bool, as_json: bool) -> None:
    """Print the modules; of a gateway what it tells to any key: their addresses, workers and hosts are in the stores."""
    if gateway is None:
        _show(*asyncio.run(_read_modules(is_refreshed=is_refreshed)), as_json=as_json)
        return
    show_list(
        ask(modules.refresh_tools if is_refreshed else modules.list_modules, gateway).modules,
        "MODULE,STATE,TOOLS,AGE,ERROR",
        lambda one: (
            one.module,
            "stale" if one.is_stale else "ok" if one.ok else "failed",
            one.tools,
            age(one.age_seconds),
            one.error or "",
        ),
        as_json=as_json,
        none="There are no modules that this key reaches.",
        to_json=lambda one: one.model_dump(mode="json", exclude_none=True),
    )


async def _read_modules(*, is_refreshed: bool) -> tuple[Settings, dict[str, ModuleStatus], "modules.ModuleOverview"]:
    """Return the status of each module: its tools, and the fleet's other facts about it."""
    from toolfleet import ToolFleet

    settings = load_settings()
    async with progress("Asking the modules"), ToolFleet(settings=settings) as fleet:
        statuses = await (fleet.modules.refresh() if is_refreshed else fleet.modules.statuses())
        return settings, statuses, await modules.read_overview(settings)


def _show(
    settings: Settings, statuses: dict[str, ModuleStatus], overview: "modules.ModuleOverview", *, as_json: bool
) -> None:
    rows = [
        _Row(status, _place(name, settings, overview), _state(status, overview), *_who(name, overview))
        for name, status in statuses.items()
    ]
    if as_json:
        say_json([row.shown(overview) for row in rows])
    elif rows:
        titles = "MODULE,URL,STATE,WORKERS,TOOLS,AGE,LANE,ERROR"
        show_rows(titles, rows, lambda one: one.cells(overview))
        _show_replicas(overview)
        _note_undeclared({name: status.undeclared for name, status in statuses.items()})
        if any(row.status.withheld or row.status.drifted for row in rows):
            note("`toolfleet tools diff` shows what is offered and not in effect.")
    else:
        note("There are no modules: `toolfleet modules add NAME URL` adds one, and so does a line in toolfleet.toml.")
    if not rows or as_json:
        for host in overview.refused:
            note(f"A host of {host.module!r} is refused: {host.reason}")
    for name, reason in overview.ignored.items():
        note(f"Module {name!r} is ignored: {reason}")


@dataclass(frozen=True, slots=True)
class _Row:
    status: ModuleStatus
    url: str
    state: str
    lane: str
    workers: int

    def error(self, overview: "modules.ModuleOverview") -> str:
        """Return what is wrong with it: in its last probe, in calls, or between processes."""
        trouble, count = overview.troubles.get(self.status.module), overview.conflicts.get(self.status.module)
        is_met = trouble is not None and trouble.trouble != "recovering" and (trouble.failures or not self.status.error)
        reason = trouble.words if trouble is not None and is_met else ""
        conflict = f"processes have {count} different settings for it" if count else ""
        state = overview.queue_states.get(self.status.module)
        queue = f"its queue is {state}: `toolfleet queues list`" if state else ""
        return "; ".join(filter(None, (self.status.error, reason, conflict, queue)))

    def cells(self, overview: "modules.ModuleOverview") -> tuple[object, ...]:
        """Return the row as people read it."""
        status = self.status
        facts = self.workers, _tools(status), age(status.age_seconds), self.lane, self.error(overview)
        return status.module, shown_url(self.url), coloured(self.state), *facts

    def shown(self, overview: "modules.ModuleOverview") -> dict[str, object]:
        """Return the row as programs read it."""
        entry = overview.entries.get(self.status.module)
        return {
            **self.status.model_dump(mode="json", exclude={"sources"}),
            "url": shown_url(self.url),
            "state": self.state,
            "lane": self.lane,
            "workers": self.workers,
            "queue": overview.queue_states.get(self.status.module, "open"),
            "origin": None if entry is None else entry.origin,
            "conflicts": overview.conflicts.get(self.status.module, 0),
            "replicas": _replicas_as_json(self.status.module, overview),
            "refused_hosts": _refused_as_json(self.status.module, overview),
        }


def _who(module: str, overview: "modules.ModuleOverview") -> tuple[str, int]:
    """Return the lane that serves a module, and the number of its workers."""
    return overview.lanes.get(module, "fast"), overview.workers.get(module, 0)


def _place(module: str, settings: Settings, overview: "modules.ModuleOverview") -> str:
    """Return its URL, or the import path of the functions that are the module; the scheduler has neither."""
    own = settings.module_services.get(module) or (settings.local_tools if module == LOCAL else None)
    entry = overview.entries.get(module)
    return own or (entry.url if entry is not None and entry.url else "-")


def _tools(status: ModuleStatus) -> str:
    """Return how many tools there are, and how many of these are not in effect as they are offered."""
    exceptions = {
        "closed": len(status.closed_tools),
        "disabled": status.disabled,
        "withheld": status.withheld,
        "drifted": status.drifted,
    }
    counts = ", ".join(f"{count} {what}" for what, count in exceptions.items() if count)
    return f"{status.tools} ({counts})" if counts else f"{status.tools}"


def _state(status: ModuleStatus, overview: "modules.ModuleOverview") -> str:
    """Return the state of a module: first the calls' findings (`away`: it is left alone, `recovering`, `failing`), then the last probe's.

    A module without live hosts is `away`, too. `stale`: there are tools, but the last probe has failed, or was
    too long ago; `unknown`: not probed yet; `failed`: some of the workers' own functions cannot be imported.
    """
    trouble, entry = overview.troubles.get(status.module), overview.entries.get(status.module)
    if (
        isinstance(entry, AnnouncedModule)
        and not entry.replicas
        and (trouble is None or trouble.trouble != "not ready")
    ):
        return "away"
    if trouble is not None:
        return trouble.trouble
    from toolfleet_registry.directory.directory import LOCAL_FAULT, state_without_manifest

    if status.age_seconds is None and not status.ok and not status.tools:
        return state_without_manifest(None if status.error == NEVER_PROBED else status.error)
    if status.error is not None and status.error.startswith(LOCAL_FAULT):
        return "failed"
    return "stale" if status.is_stale or not status.ok else "ok"


def _show_replicas(overview: "modules.ModuleOverview") -> None:
    """Print a table of each module with several hosts, and of hosts that are refused; nothing where there are none."""
    refused = {host.module for host in overview.refused}
    several = {name: found for name, found in _replicas(overview).items() if len(found) > 1 or name in refused}
    if not several and not refused:
        return
    shown = table("HOST OF", "URL", "STATE", "IN FLIGHT", "FAILURES", "REASON")
    for name in sorted(several.keys() | refused):
        for replica in several.get(name, ()):
            counts = _replica_facts(name, replica, overview)
            ejected = counts["ejected_seconds"]
            state = (
                Text(f"left alone for {ejected:.0f} s", style="yellow") if ejected else Text("serves", style="green")
            )
            numbers = str(counts["in_flight"]), str(counts["failures"])
            add_row(shown, name, shown_url(replica.url), state, *numbers, "")
        for host in overview.refused:
            if host.module == name:
                add_row(
                    shown, name, shown_url(host.url) or host.id, Text("refused", style="red"), "-", "-", host.reason
                )
    show_table(shown)


def _replicas_as_json(module: str, overview: "modules.ModuleOverview") -> list[dict[str, object]]:
    """Return the hosts of a module, for programs."""
    return [
        {"id": one.id, "url": shown_url(one.url), **_replica_facts(module, one, overview)}
        for one in _replicas(overview).get(module, ())
    ]


def _refused_as_json(module: str, overview: "modules.ModuleOverview") -> list[dict[str, str]]:
    """Return the refused hosts of a module, and why, for programs."""
    found = [host for host in overview.refused if host.module == module]
    return [{"id": host.id, "url": shown_url(host.url), "reason": host.reason} for host in found]


def _replica_facts(module: str, replica: "Replica", overview: "modules.ModuleOverview") -> dict[str, float]:
    """Return the findings of all workers about a host: zeros, if it is the only one of its module."""
    count = overview.counts.get(module, {}).get(replica.id)
    if count is None:
        return {"in_flight": 0, "failures": 0, "ejected_seconds": 0.0}
    return {"in_flight": count.in_flight, "failures": count.failures, "ejected_seconds": count.ejected_seconds}


def _replicas(overview: "modules.ModuleOverview") -> "Mapping[str, tuple[Replica, ...]]":
    entries = overview.entries.items()
    return {name: entry.replicas for name, entry in entries if isinstance(entry, AnnouncedModule)}


def _note_undeclared(undeclared: Mapping[str, int]) -> None:
    """Say how many tools of which modules declare no effect."""
    if modules := [name for name, count in undeclared.items() if count]:
        note(
            f"{sum(undeclared.values())} tools of {', '.join(modules)} declare no effect: the fleet never repeats them once they may have "
            f"been executed; {UNDECLARED_LINES}."
        )
