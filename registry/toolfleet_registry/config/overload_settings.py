"""Declares the settings that bound how much may run, wait and be stored at once; a part of `Settings`."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode

from toolfleet_registry.config.setting_values import Count, read_json
from toolfleet_registry.contracts import CostClass


class OverloadSettings(BaseSettings, defer_build=True):
    """Bounds of callers, modules and workers, and when a module counts as away."""

    worker_concurrency: Annotated[int, Field(gt=0, le=100_000)] = 1000
    """Calls in flight in one worker process, its slots; up to a quarter more while one module holds half of them, for the others. A
    waiting call costs about 30 kB."""
    backlog_limit: Count = 10_000
    """Calls that wait in a module's queue before further ones are told `busy`: more would hardly be answered in time."""
    module_backlogs: Annotated[dict[str, Count], NoDecode] = {}
    """Module name -> that limit, for single modules."""
    max_arguments_bytes: Annotated[int, Field(gt=0)] = 2**20
    """Of a call's arguments, as the JSON that is published: what takes an agent or a worker longer than 20 ms to read, check and write
    delays all others. One value for agents and workers."""
    agent_backlog_limit: Count = 50_000
    """Calls that wait in one agent until they may be published; further ones are `busy`. Each takes about 15 kB there. The more
    wait, the fewer a single user may have among them: at most as many as there is room left, and half of all."""
    broker_patience_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30
    """How long a call waits in its agent, within its deadline, for a Redis or RabbitMQ that is away, before it ends as
    `fleet_unavailable`: a restart or a fail-over is over by then, most often, and nobody's patience is. It is counted from the first
    call that finds it away: once that long is over, each further call ends within some three seconds, after one more try."""
    unserved_seconds: Annotated[float, Field(ge=0)] = 5
    """How long a module may have been without a worker before its calls are told `busy`: a worker that was killed is back by then,
    most often. `inf`: calls always wait for a worker."""
    restart_seconds: Annotated[float, Field(ge=0, le=600)] = 60
    """How long a worker that was told to end, by SIGTERM, counts as one that is being restarted: its modules' calls wait. 0: not at all."""
    scale_from_zero_lanes: Annotated[frozenset[Literal["fast", "slow"]], NoDecode] = frozenset()
    """Lanes whose workers are started when calls wait for them: these calls always wait."""
    module_concurrency: Annotated[dict[str, Count], NoDecode] = {}
    """Module name -> calls that may run there at once, over all workers; without an entry as many as there are slots."""
    calls_per_caller: Count | None = None
    """A caller's published, unfinished calls in a lane; None: twice the slots of its workers, so that none stays idle."""
    backlog_bytes: Count = 256 * 2**20
    """Bytes of calls that wait in a module's queue, roughly: a few hundred large ones fill a Redis as ten thousand small ones do not.

    A call that is smaller than its part of them, which is 26 kB with 10,000 calls, is bounded by their number only.
    """
    stored_bytes_per_caller: Count = 256 * 2**20
    """Bytes of a user's results that nobody has had yet, or had just now, and of their calls that wait for approvals, before
    further calls are told `busy`. A call that waits counts with 16 KiB at least."""
    breaker_failures: Count = 20
    """Calls in a row without an answer after which a module counts as away; so many answers and it is back for all.

    More than a restart under light load brings. One to which no worker can connect is away at once.
    """
    breaker_seconds: float = Field(default=10, gt=0)
    """How long a module that is away is left alone at most: 1 s at first, and longer each time it is looked for in vain."""
    manifest_requests: Count = 500
    """Modules that one process asks for their manifests at once: each is an open socket, and 1,024 is a usual limit of these."""
    cost_budgets: Annotated[dict[CostClass, Count], NoDecode] = {}
    """Cost class (free, cheap, expensive) -> calls a user may make a UTC day; one value for agents and workers."""

    @field_validator("module_backlogs", "module_concurrency", "cost_budgets", mode="before")
    @classmethod
    def _read_bounds(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value
