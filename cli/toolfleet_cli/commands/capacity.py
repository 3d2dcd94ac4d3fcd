"""Says how many agents, workers and Redis servers a load needs, by the measured costs of a call: `toolfleet capacity`."""

import math
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from toolfleet_cli.console import add_row, note, say_json, show_table, table

MEASURED_BY = "make bench"
"""The command that measures the costs: W1 in `benchmarks/results/full.md`, on two cores of an Intel Xeon, Redis without persistence."""

_MARGIN = 2  # of Redis's memory: its file is rewritten by a copy of the process

_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class CallCosts:
    """The costs of a call: CPU in seconds, memory in bytes. `slots`: the calls that a worker process runs at once.

    `core_use`: how much of a core a process should use, so that peaks find room; `redis_use` the same of Redis.
    """

    agent_cpu: float = 0.13e-3
    worker_cpu: float = 0.25e-3
    redis_cpu: float = 0.05e-3
    worker_memory: int = 69_000_000
    running_memory: int = 23_000
    message_bytes: int = 1_500
    message_copies: int = 2
    record_bytes: int = 300
    slots: int = 1_000
    slot_use: float = 0.8
    core_use: float = 0.6
    redis_use: float = 0.7


MEASURED = CallCosts()
"""The measured costs. Code has these figures in no other place."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The load of a fleet. `rate`: calls a second at the busiest hour. `latency`: seconds of a call in its module. `payload`: bytes of its arguments.

    `kept_seconds`: how long records of ended calls are kept. `answer`: bytes of a result.
    """

    rate: float
    latency: float
    payload: int = 0
    answer: int = 0
    kept_seconds: float = 21_600


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The numbers of a planned fleet.

    `workers` has one to spare; memory is in bytes. `redis_cores`: how much of one core a Redis is busy.

    `at_once`: calls that run at once, which the modules must bear. `fleets`: of more than one, each has its own Redis.
    """

    at_once: int
    agents: int
    workers: int
    short_of: str
    worker_memory: int
    redis_cores: float
    redis_memory: int
    redis_ends_at: int
    fleets: int


def plan(load: FleetLoad) -> CapacityPlan:
    """Return the processes for this load, of all fleets together; `redis_cores` and `redis_memory` are those of one of the fleets."""
    costs = MEASURED
    at_once = math.ceil(load.rate * load.latency)
    by_slots = math.ceil(at_once / (costs.slots * costs.slot_use))
    by_cpu = math.ceil(load.rate * costs.worker_cpu / costs.core_use)
    workers = max(1, by_slots, by_cpu) + 1
    ends_at = round(costs.redis_use / costs.redis_cpu)
    fleets = max(1, math.ceil(load.rate / ends_at))
    message = costs.message_bytes + costs.message_copies * load.payload + load.answer
    records = load.rate * load.kept_seconds * costs.record_bytes
    return CapacityPlan(
        at_once=at_once,
        agents=max(1, math.ceil(load.rate * costs.agent_cpu / costs.core_use)),
        workers=workers,
        short_of="slots" if by_slots > by_cpu else "CPU",
        worker_memory=costs.worker_memory + math.ceil(at_once / workers) * costs.running_memory,
        redis_cores=load.rate / fleets * costs.redis_cpu,
        redis_memory=math.ceil(_MARGIN * (records + at_once * message) / fleets),
        redis_ends_at=ends_at,
        fleets=fleets,
    )


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
