"""Shows what the doctor has found: for people, or as JSON."""

from typing import Any

from rich.text import Text

from toolfleet_cli.console.output import add_row, note, out, plain, say, say_json, show_table, table
from toolfleet_cli.doctor.examination import Examination
from toolfleet_cli.doctor.finding import Severity

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: ""}
_ROWS = 20  # of canaries; --json has all


def as_json(found: Examination, *, with_quotes: bool = True) -> dict[str, Any]:
    """All of it; without words of others, if these are not to be in it."""
    return {
        "exit_code": found.exit_code,
        "findings": [
            {
                "check": check,
                "severity": finding.severity.value,
                "what": finding.shown if with_quotes else finding.what,
                "why": finding.why,
                "mend": finding.mend,
            }
            for check, finding in found.findings
        ],
        "could_not_look": {name: reason if with_quotes else _kind_of(reason) for name, reason in found.blind.items()},
        "facts": {check: dict(facts) for check, facts in found.facts.items()},
    }


def _kind_of(reason: str) -> str:
    """Return a reason without the text in brackets after the name of an error, which may be anything."""
    return reason.partition("(")[0].rstrip()


def show(found: Examination, *, in_json: bool) -> None:
    """Print it on stdout."""
    if in_json:
        say_json(as_json(found))
        return
    for check, finding in found.findings:
        word = Text(f"{finding.severity.value.upper():8}", style=_COLOURS[finding.severity])
        out.print(word + Text(plain(f"{check}: {finding.shown}")))
        say(f"        why   {finding.why}")
        say(f"        mend  {finding.mend}")
        say("")
    _show_canaries(found)
    if found.blind:
        note(f"Not looked at: {', '.join(f'{name} ({reason})' for name, reason in sorted(found.blind.items()))}")
    say(_sum(found))


def _show_canaries(found: Examination) -> None:
    canaries = found.facts.get("canary", {}).get("canaries", [])
    if not canaries:
        return
    shown = table("QUEUE", "CANARY", "QUEUED", "HEALTH", "TOTAL", "WORKER")
    for one in canaries[:_ROWS]:
        health = f"{one['health']} {_ms(one['health_seconds'])}" if one["health"] else "-"
        row = (
            one["queue"],
            one["fate"],
            _ms(one["queued_seconds"]),
            health,
            _ms(one["total_seconds"]),
            one["worker"] or "-",
        )
        add_row(shown, *row)
    show_table(shown)
    if len(canaries) > _ROWS:
        say(f"{len(canaries) - _ROWS} queues more: --json has all.")
    say("")


def _sum(found: Examination) -> str:
    counted = {each: sum(finding.severity is each for _, finding in found.findings) for each in Severity}
    if not found.findings:
        return f"{len(found.facts)} checks found nothing."
    parts = [f"{count} {each.value}{'s' if count != 1 else ''}" for each, count in counted.items() if count]
    return f"{len(found.facts)} checks found {', '.join(parts)}."


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"
