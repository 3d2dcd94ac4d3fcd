"""What a run is: how much of everything, with which settings, and what its tools may be asked to do."""

import base64
from dataclasses import dataclass
from typing import Any, Literal

from toolfleet_registry.settings import Settings

QUICK = {"toolfleet_tasks.ledger.parameters.BREAKER_SECONDS": 1}
"""Constants of the workers."""

LEASE_SECONDS = 3
"""Short, so that what a dead or frozen worker held comes back within a moment of the run."""

LIMIT_SECONDS = 3
"""For a request to a module: hanging ones must not take all slots."""

MARGIN_SECONDS = 5
"""A call may end so long after its deadline: two are documented for a silent Redis, the rest is a busy machine's."""

LONGEST_TIMEOUT_SECONDS = 20
LEFT_ALONE_SECONDS = 20
"""A module may be refused so long without a success: restarts take one or two, a breaker one, a dead worker's lease three."""

LONGEST_JOB_SECONDS = 15
JOB_MARGIN_SECONDS = 20
"""A job may end so long after its deadline: five are the fleet's own, for clocks that differ; then it is looked for again by
whoever comes, and a dead worker's lease, a restart and a silent Redis may lie between."""

WORKERS = 3
AGENTS = 2
CORES = 2
"""Of one core, behind one port: what one has begun that is frozen, the other takes over."""
_REST_SHARE, _SHORTEST_REST_SECONDS = 0.1, 75
_RABBITMQ_SECONDS = 45  # to start it, and to bring a fleet up that waits for it

EFFECTS = ("once", "idempotent", "read", "undeclared")
MODULES = ("bank", "post")
RECONCILING = "bank"
"""The module that can be asked what has become of a call."""

LOOK = "look"
"""The tool that jobs poll; declared `read`."""

HOSTILE_ARGUMENTS, HOSTILE_REPLY = "hostile_arguments_", "hostile_reply_"
"""What the names of tools begin with that have a hostile schema: for what they are sent, or for what they answer. Declared `read`."""

BURST = 300
"""Calls that an agent makes in one tick when it is told to."""

CORE_SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()

Behaviour = Literal["ok", "fails", "fails_clean", "error", "busy", "gateway", "garbles", "hangs_up", "hangs", "crashes"]
EFFECTLESS: frozenset[Behaviour] = frozenset({"fails_clean", "busy"})

BEHAVIOURS: dict[Behaviour, int] = {
    "ok": 70,
    "fails": 4,
    "fails_clean": 3,
    "error": 4,
    "busy": 6,
    "gateway": 3,
    "garbles": 2,
    "hangs_up": 5,
    "hangs": 1,
}
"""What a tool is asked to do, and how often. Crashes are faults, and asked for elsewhere."""


def effect_of(tool: str) -> str:
    """What a tool declares, or `undeclared`."""
    method = tool.partition(".")[2]
    return method if method in EFFECTS else "read"


def is_hostile(tool: str) -> bool:
    """Whether its schema is."""
    return tool.partition(".")[2].startswith((HOSTILE_ARGUMENTS, HOSTILE_REPLY))


@dataclass(frozen=True)
class Plan:
    """`seconds` bounds the whole run; the same `seed` makes the same calls, jobs and faults, though never the same moments."""

    calls: int
    faults: int
    seed: int
    seconds: float
    jobs: int = 0
    has_core: bool = True
    on_rabbitmq: bool = False
    """Whether calls wait in RabbitMQ; what is known of them is in Redis all the same."""

    @property
    def load_seconds(self) -> float:
        """How long calls are made and faults happen. The rest is for the last ones' deadlines, and a look at what is left."""
        rest = max(self.seconds * _REST_SHARE, _SHORTEST_REST_SECONDS) + _RABBITMQ_SECONDS * self.on_rabbitmq
        return max(self.seconds - rest, 1)


def settings_for(
    redis_url: str, services: dict[str, str], core_url: str | None, broker_url: str | None = None
) -> Settings:
    """A fleet whose waits are short, and whose limits are low enough to be reached. Without a `broker_url`, Redis is the broker."""
    own: dict[str, Any] = {
        "redis_url": redis_url,
        "broker_url": broker_url,
        "module_services": services,
        "visibility_timeout": LEASE_SECONDS,
        "module_timeouts": dict.fromkeys(services, LIMIT_SECONDS),
        "worker_concurrency": 64,
        "refresh_interval_seconds": 5,
        "drain_seconds": 10,
        "module_concurrency": {RECONCILING: 60},
        "calls_per_caller": 30,
        "backlog_limit": 60,
        "core_url": core_url,
        "core_secret": CORE_SECRET,
        "jobs_interval_seconds": 0.3,
    }
    return Settings(**own)
