"""Counts the processes of each kind that a load needs, and says where one Redis ends."""

import math
from dataclasses import dataclass

from toolfleet_cli.capacity.costs import MEASURED, CallCosts

_MARGIN = 2  # of Redis's memory: its file is rewritten by a copy of the process


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """`rate`: calls a second at the busiest hour. `latency`: seconds of a call in its module. `payload`: bytes of its arguments.

    `kept_seconds`: how long records of ended calls are kept. `answer`: bytes of a result.
    """

    rate: float
    latency: float
    payload: int = 0
    answer: int = 0
    kept_seconds: float = 21_600


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """How many of each. `workers` has one to spare; memory is in bytes. `redis_cores`: how much of one core a Redis is busy.

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


def plan(load: FleetLoad, costs: CallCosts = MEASURED) -> CapacityPlan:
    """The processes for this load, of all fleets together; `redis_cores` and `redis_memory` are those of one of the fleets."""
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
