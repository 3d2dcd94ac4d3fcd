"""Writes the page of all families of metrics, read from the table that names them."""

from typing import Final

from docsite.wrapping import wrapped
from toolfleet_registry.metric_families import BRIEF, FAMILIES, SOON, TOOL, Family, Source

_HEAD = """# Metrics, by name

Everything that a fleet tells Prometheus. [Metrics and scaling](../operations/metrics.md) says how to ask for it, and
what to watch. No family has a user, a call, a conversation or a machine for a label. The
first 200 tools of a process have series of their own; others, their modules, and names that a model has made up are
`other`. What a process has never counted is not there yet: write `… or vector(0)` where that matters.
"""
_TITLES: Final[dict[Source, tuple[str, str]]] = {
    "calls": (
        "Calls",
        "Each worker, gateway and agent, of the calls that it has run, ended or refused: a call's end is counted once.",
    ),
    "worker": ("Workers", "Each worker, of itself."),
    "process": (
        "Processes",
        "All of them, beside `process_cpu_seconds_total` and its like; the way to Redis is that of workers.",
    ),
    "host": ("Hosts", "Each host, of the modules that it serves."),
    "gateway": ("Gateways", "Each gateway, of its own requests."),
    "fleet": (
        "The fleet",
        "Each gateway, of the whole fleet, as Redis says it: all gateways say the same, so take `max`, not `sum`.",
    ),
}
_BUCKETS: Final[dict[tuple[float, ...], str]] = {SOON: "SOON", TOOL: "TOOL", BRIEF: "BRIEF"}


def metrics_page() -> str:
    """Return the page: a table for each kind of process."""
    return wrapped("\n".join([_HEAD, *(_chapter(source, *title) for source, title in _TITLES.items()), _bounds()]))


def _chapter(source: Source, title: str, who: str) -> str:
    rows = [_row(family) for family in FAMILIES if family.source == source]
    return "\n".join(
        [f"## {title}\n", f"{who}\n", "| family | kind | labels | what it says |", "|---|---|---|---|", *rows, ""]
    )


def _row(family: Family) -> str:
    kind = f"{family.kind} ({_BUCKETS[family.buckets]})" if family.buckets else family.kind
    return f"| `{family.name}` | {kind} | {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"


def _bounds() -> str:
    rows = [f"| {name} | {', '.join(f'{bound:g}' for bound in bounds)} |" for bounds, name in _BUCKETS.items()]
    said = "The first two are those of OpenTelemetry's conventions, for messaging and for the execution of tools."
    return "\n".join(["## Buckets\n", f"{said}\n", "| buckets | upper bounds, in seconds |", "|---|---|", *rows, ""])
