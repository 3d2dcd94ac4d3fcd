"""Says how many agents, workers and Redis servers a load needs: `toolfleet capacity`."""

from dataclasses import asdict
from typing import Annotated

import typer

from toolfleet_cli.capacity import MEASURED_BY, CapacityPlan, FleetLoad, plan
from toolfleet_cli.console.output import add_row, note, say_json, show_table, table

_MEGABYTE = 1_000_000


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(capacity)


def capacity(
    *,
    rate: Annotated[float, typer.Option("--rate", min=0.001, max=1e6, help="Calls a second, at the busiest hour.")],
    latency: Annotated[
        float, typer.Option("--latency", min=0, max=86_400, help="Seconds that a call takes in its module.")
    ],
    payload: Annotated[int, typer.Option("--payload", min=0, max=10**8, help="Bytes of a call's arguments.")] = 0,
    answer: Annotated[int, typer.Option("--answer", min=0, max=10**8, help="Bytes of a call's result.")] = 0,
    kept: Annotated[
        float, typer.Option("--kept", min=0, help="Seconds that records are kept: TOOLFLEET_RESULT_TTL_SECONDS.")
    ] = 21_600,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how many agents, workers and Redis servers a load needs, by measured costs. Asks no fleet."""
    found = plan(FleetLoad(rate=rate, latency=latency, payload=payload, answer=answer, kept_seconds=kept))
    if as_json:
        say_json({**asdict(found), "measured_by": MEASURED_BY})
        return
    _show(found)


def _show(found: CapacityPlan) -> None:
    shown = table("WHAT", "HOW MANY", "EACH")
    add_row(shown, "agent processes", str(found.agents), "-")
    add_row(
        shown,
        "worker processes",
        str(found.workers),
        f"{_mb(found.worker_memory)}, one to spare; {found.short_of} decide",
    )
    add_row(shown, "Redis", str(found.fleets), f"{found.redis_cores:.2f} of a core, {_mb(found.redis_memory)}")
    add_row(shown, "calls at once in modules", str(found.at_once), "a connection for each")
    show_table(shown)
    note(f"One Redis ends at about {found.redis_ends_at:,} calls a second: beyond, split the fleet.")
    note(f"Measured by `{MEASURED_BY}` with small payloads and Redis without persistence: measure your own.")


def _mb(count: int) -> str:
    return f"{count / _MEGABYTE:,.0f} MB"
