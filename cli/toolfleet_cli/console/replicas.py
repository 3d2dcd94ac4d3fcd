"""Shows the hosts of modules that several serve, and those that announce in vain."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from toolfleet_cli.console.output import add_row, show_table, shown_url, table
from toolfleet_registry.directory.entries import AnnouncedModule

if TYPE_CHECKING:
    from toolfleet_registry.directory.replicas import Replica
    from toolfleet_tasks.operations.module_overview import ModuleOverview


def show_replicas(overview: "ModuleOverview") -> None:
    """Print a table of each module with several hosts, and of hosts that are refused; nothing where there are none."""
    refused = {host.module for host in overview.refused}
    several = {name: found for name, found in _replicas(overview).items() if len(found) > 1 or name in refused}
    if not several and not refused:
        return
    shown = table("HOST OF", "URL", "STATE", "IN FLIGHT", "FAILURES", "REASON")
    for name in sorted(several.keys() | refused):
        for replica in several.get(name, ()):
            counts = replica_facts(name, replica, overview)
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


def replicas_of(module: str, overview: "ModuleOverview") -> list[dict[str, object]]:
    """The hosts of a module, as programs read them."""
    return [
        {"id": one.id, "url": shown_url(one.url), **replica_facts(module, one, overview)}
        for one in _replicas(overview).get(module, ())
    ]


def refused_of(module: str, overview: "ModuleOverview") -> list[dict[str, str]]:
    """Return the refused hosts of a module, and why, for programs."""
    found = [host for host in overview.refused if host.module == module]
    return [{"id": host.id, "url": shown_url(host.url), "reason": host.reason} for host in found]


def replica_facts(module: str, replica: "Replica", overview: "ModuleOverview") -> dict[str, float]:
    """Return the findings of all workers about a host: zeros, if it is the only one of its module."""
    count = overview.counts.get(module, {}).get(replica.id)
    if count is None:
        return {"in_flight": 0, "failures": 0, "ejected_seconds": 0.0}
    return {"in_flight": count.in_flight, "failures": count.failures, "ejected_seconds": count.ejected_seconds}


def _replicas(overview: "ModuleOverview") -> "Mapping[str, tuple[Replica, ...]]":
    entries = overview.entries.items()
    return {name: entry.replicas for name, entry in entries if isinstance(entry, AnnouncedModule)}
