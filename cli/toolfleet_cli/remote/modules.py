"""Shows modules as a gateway knows them, and has them added and removed."""

from collections.abc import Mapping
from typing import Any

from toolfleet_cli.console.output import add_row, age, note, say_json, show_table, table
from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_registry.policy.hints import UNDECLARED_LINES


def show_modules(gateway: Gateway, *, refreshed: bool, as_json: bool) -> None:
    """Print the status of each module; `refreshed`: after a new probe."""
    found = (gateway.post("/refresh-tools") if refreshed else gateway.get("/modules"))["modules"]
    if as_json:
        say_json(found)
        return
    if not found:
        note("There are no modules that this key reaches.")
        return
    shown = table("MODULE", "STATE", "TOOLS", "AGE", "ERROR")
    for each in found:
        add_row(
            shown,
            each["module"],
            _state(each),
            str(each["tools"]),
            age(each.get("age_seconds")),
            each.get("error") or "",
        )
    show_table(shown)
    note_undeclared({each["module"]: each.get("undeclared", 0) for each in found})


def note_undeclared(undeclared: Mapping[str, int]) -> None:
    """Say how many tools of which modules declare no effect."""
    if modules := [name for name, count in undeclared.items() if count]:
        note(
            f"{sum(undeclared.values())} tools of {', '.join(modules)} declare no effect: the fleet never repeats them once they may have "
            f"been executed; {UNDECLARED_LINES}."
        )


def added(gateway: Gateway, entry: ModuleEntry) -> str:
    """Have a module added. Returns the lane that serves it."""
    names = ("module", "url", "slow", "timeout_seconds", "scales_from_zero")
    return str(gateway.post("/operations/modules", {name: getattr(entry, name) for name in names})["lane"])


def removed(gateway: Gateway, module: str, drain_seconds: float | None) -> float:
    """Have a module removed. Returns for how many seconds the calls that wait are run."""
    found = gateway.delete(place("operations", "modules", module), {"drain_seconds": drain_seconds})
    return float(found["drain_seconds"])


def _state(module: dict[str, Any]) -> str:
    return "stale" if module["is_stale"] else ("ok" if module["ok"] else "failed")
