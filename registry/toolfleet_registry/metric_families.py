"""Names every family of metrics: its kind, its labels, who has it, and what it says."""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]

Source = Literal["calls", "worker", "process", "host", "gateway", "fleet"]
"""Who has a family: `calls`: workers, gateways and agents, of the calls that each has run or ended; `process`: all of them;
`fleet`: a gateway, of the whole fleet, as Redis says it at that moment."""

SOON: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Upper bounds, in seconds, of what a broker does: those of OpenTelemetry's messaging metrics."""

TOOL: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""The same of what tools take: those of OpenTelemetry's `gen_ai.execute_tool.duration`."""

BRIEF: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""The same of what should take no time."""


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One family, which is itself only: it is a key of what every call counts. `buckets` are upper bounds in seconds, of a histogram."""

    name: str
    kind: Kind
    source: Source
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


PREFIX: Final = "toolfleet_"

CALLS = Family(
    "toolfleet_calls_total",
    "counter",
    "calls",
    "Calls that have ended, each counted by whoever has ended it.",
    ("module", "tool", "outcome", "error_code", "effect_state"),
)
CALL_QUEUED = Family(
    "toolfleet_call_queued_seconds",
    "histogram",
    "calls",
    "From a call's publishing until a worker has begun it for the first time.",
    ("module",),
    SOON,
)
CALL_RUN = Family(
    "toolfleet_call_run_seconds", "histogram", "calls", "A call's last attempt in its worker.", ("module",), TOOL
)
CALL_TOTAL = Family(
    "toolfleet_call_total_seconds",
    "histogram",
    "calls",
    "From a call's publishing to its result, of those that a worker has ended.",
    ("module",),
    TOOL,
)
RETRIES = Family("toolfleet_retries_total", "counter", "calls", "Attempts that another one has followed.", ("module",))
CLAIMS_LOST = Family(
    "toolfleet_claims_lost_total",
    "counter",
    "calls",
    "Running calls that others have taken over, or ended, while this worker had them.",
    ("module",),
)
RESULTS_LATE = Family(
    "toolfleet_results_late_total",
    "counter",
    "calls",
    "Results that nobody waited for: the ledger has refused them.",
    ("module",),
)
ADMISSION_REFUSALS = Family(
    "toolfleet_admission_refusals_total",
    "counter",
    "calls",
    "Calls that were not let into their queue, by what stood against them.",
    ("reason",),
)
AUDIT_MISSED = Family(
    "toolfleet_audit_lines_missed_total", "counter", "calls", "Audit lines that could not be written into Redis."
)

WORKER_INFO = Family(
    "toolfleet_worker_info", "gauge", "worker", "What this worker is; always 1.", ("lane", "transport", "version")
)
WORKER_READY = Family("toolfleet_worker_ready", "gauge", "worker", "Whether the worker takes calls.")
WORKER_IN_FLIGHT = Family("toolfleet_worker_in_flight", "gauge", "worker", "Calls that this worker runs now.")
WORKER_SLOTS = Family("toolfleet_worker_slots", "gauge", "worker", "Calls that this worker may run at once.")
WORKER_LEASES = Family("toolfleet_worker_leases", "gauge", "worker", "Calls that this worker holds in the ledger.")
LOOP_STALLED = Family(
    "toolfleet_loop_stalled_seconds", "gauge", "worker", "How long the event loop has stood still by now."
)

LOOP_LAG = Family(
    "toolfleet_loop_lag_seconds",
    "histogram",
    "process",
    "How late the event loop came, asked once a second.",
    (),
    BRIEF,
)
REDIS_ROUND_TRIP = Family(
    "toolfleet_redis_round_trip_seconds",
    "histogram",
    "process",
    "One round trip to Redis over the connection that calls use, asked once a second.",
    (),
    BRIEF,
)

HOST_REQUESTS = Family(
    "toolfleet_host_requests_total",
    "counter",
    "host",
    "Requests that a host has answered, by module and status.",
    ("module", "status"),
)
HOST_REQUEST_SECONDS = Family(
    "toolfleet_host_request_seconds",
    "histogram",
    "host",
    "How long a host took to answer a request of a module's `/execute`.",
    ("module",),
    TOOL,
)

GATEWAY_REQUESTS = Family(
    "toolfleet_gateway_requests_total",
    "counter",
    "gateway",
    "Requests that this gateway has answered, by method, route and status.",
    ("method", "route", "status"),
)
GATEWAY_REQUEST_SECONDS = Family(
    "toolfleet_gateway_request_seconds",
    "histogram",
    "gateway",
    "How long this gateway took to answer; a stream until its end.",
    ("route",),
    TOOL,
)

REDIS_UP = Family("toolfleet_redis_up", "gauge", "fleet", "Whether the fleet's Redis has answered.")
BROKER_UP = Family(
    "toolfleet_broker_up",
    "gauge",
    "fleet",
    "Whether the broker has said how much waits; left out while the fleet's Redis is away.",
)
FLEET_READ = Family(
    "toolfleet_fleet_read_seconds", "gauge", "fleet", "How long it took to ask Redis, and RabbitMQ, for the fleet."
)
QUEUE_WAITING = Family("toolfleet_queue_waiting", "gauge", "fleet", "Messages that wait in a queue.", ("queue", "lane"))
QUEUE_OLDEST = Family(
    "toolfleet_queue_oldest_seconds",
    "gauge",
    "fleet",
    "Since when the oldest call of a queue has waited; 0 where none does; left out with RabbitMQ.",
    ("queue", "lane"),
)
QUEUE_RUNNING = Family(
    "toolfleet_queue_running",
    "gauge",
    "fleet",
    "Calls of a queue that workers run, as they said last.",
    ("queue", "lane"),
)
QUEUE_WORKERS = Family(
    "toolfleet_queue_workers", "gauge", "fleet", "Live workers that take from a queue.", ("queue", "lane")
)
QUEUE_STATE = Family(
    "toolfleet_queue_state",
    "gauge",
    "fleet",
    "What operators have done to a queue: 0 nothing, 1 it drains, 2 it is paused.",
    ("queue", "lane"),
)
LANE_WORKERS = Family("toolfleet_lane_workers", "gauge", "fleet", "Live workers of a lane.", ("lane",))
LANE_SLOTS = Family("toolfleet_lane_slots", "gauge", "fleet", "Calls that a lane's workers may run at once.", ("lane",))
LANE_WANTED = Family(
    "toolfleet_lane_workers_wanted",
    "gauge",
    "fleet",
    "Workers that a lane needs: running and waiting calls by the slots of one.",
    ("lane",),
)
HELD = Family(
    "toolfleet_messages_held",
    "gauge",
    "fleet",
    "Messages that workers have taken and not acknowledged; left out with RabbitMQ.",
)
BREAKER = Family(
    "toolfleet_breaker_state",
    "gauge",
    "fleet",
    "A module's breaker: 0 closed, 1 letting calls in gradually, 2 open.",
    ("module",),
)
MODULE_FAILURES = Family(
    "toolfleet_module_failures", "gauge", "fleet", "Calls in a row that a module has not answered.", ("module",)
)
APPROVALS_WAITING = Family("toolfleet_approvals_waiting", "gauge", "fleet", "Calls that wait for people's approval.")
JOBS = Family("toolfleet_jobs", "gauge", "fleet", "Jobs that have not ended.")
JOBS_DUE = Family("toolfleet_jobs_due", "gauge", "fleet", "Jobs of which something is due now.")
JOBS_LATE = Family("toolfleet_jobs_late", "gauge", "fleet", "Jobs that should have been looked at five seconds ago.")
WAKEUPS_WAITING = Family(
    "toolfleet_wakeups_waiting", "gauge", "fleet", "Wake-ups that nobody has accepted yet.", ("kind",)
)
DEAD_LETTERS = Family("toolfleet_dead_letters", "gauge", "fleet", "Dead letters that wait for an operator.", ("kind",))
QUARANTINED = Family("toolfleet_quarantined_total", "counter", "fleet", "Items that lay in a queue and were no calls.")
REGISTRY_CHANGES = Family(
    "toolfleet_registry_changes_total", "counter", "fleet", "Changes of manifests, tools and modules.", ("kind",)
)

FAMILIES: Final[tuple[Family, ...]] = tuple(value for value in list(vars().values()) if isinstance(value, Family))
"""All of them, in the order in which they are shown."""
