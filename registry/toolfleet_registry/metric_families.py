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


def _family(source: Source, name: str, text: str, labels: str = "", buckets: tuple[float, ...] = ()) -> Family:
    """Return a family: a histogram if it has buckets, a counter if its name says so, and a gauge otherwise."""
    kind: Kind = "histogram" if buckets else "counter" if name.endswith("_total") else "gauge"
    return Family(name, kind, source, text, tuple(labels.split()), buckets)


PREFIX: Final = "toolfleet_"

CALLS = _family(
    "calls",
    "toolfleet_calls_total",
    "Calls that have ended, each counted by the process that ended it.",
    "module tool outcome error_code effect_state",
)
CALL_QUEUED = _family(
    "calls",
    "toolfleet_call_queued_seconds",
    "From a call's publishing until a worker has started it for the first time.",
    "module",
    SOON,
)
CALL_RUN = _family("calls", "toolfleet_call_run_seconds", "A call's last attempt in its worker.", "module", TOOL)
CALL_TOTAL = _family(
    "calls",
    "toolfleet_call_total_seconds",
    "From a call's publishing to its result, of those that a worker has ended.",
    "module",
    TOOL,
)
RETRIES = _family("calls", "toolfleet_retries_total", "Attempts that another one has followed.", "module")
CLAIMS_LOST = _family(
    "calls",
    "toolfleet_claims_lost_total",
    "Running calls that others have taken over, or ended, while this worker had them.",
    "module",
)
RESULTS_LATE = _family(
    "calls", "toolfleet_results_late_total", "Results that no caller waited for: the ledger has refused them.", "module"
)
ADMISSION_REFUSALS = _family(
    "calls",
    "toolfleet_admission_refusals_total",
    "Calls that were not let into their queue, by what stood against them.",
    "reason",
)
AUDIT_MISSED = _family(
    "calls", "toolfleet_audit_lines_missed_total", "Audit lines that could not be written into Redis."
)

WORKER_INFO = _family("worker", "toolfleet_worker_info", "What this worker is; always 1.", "lane transport version")
WORKER_READY = _family("worker", "toolfleet_worker_ready", "Whether the worker takes calls.")
WORKER_IN_FLIGHT = _family("worker", "toolfleet_worker_in_flight", "Calls that this worker runs now.")
WORKER_SLOTS = _family("worker", "toolfleet_worker_slots", "Calls that this worker may run at once.")
WORKER_LEASES = _family("worker", "toolfleet_worker_leases", "Calls that this worker holds in the ledger.")
LOOP_STALLED = _family("worker", "toolfleet_loop_stalled_seconds", "How long the event loop has stood still by now.")

LOOP_LAG = _family(
    "process", "toolfleet_loop_lag_seconds", "How late the event loop came, asked once a second.", buckets=BRIEF
)
REDIS_ROUND_TRIP = _family(
    "process",
    "toolfleet_redis_round_trip_seconds",
    "One round trip to Redis over the connection that calls use, asked once a second.",
    buckets=BRIEF,
)

HOST_REQUESTS = _family(
    "host", "toolfleet_host_requests_total", "Requests that a host has answered, by module and status.", "module status"
)
HOST_REQUEST_SECONDS = _family(
    "host",
    "toolfleet_host_request_seconds",
    "How long a host took to answer a request of a module's `/execute`.",
    "module",
    TOOL,
)

GATEWAY_REQUESTS = _family(
    "gateway",
    "toolfleet_gateway_requests_total",
    "Requests that this gateway has answered, by method, route and status.",
    "method route status",
)
GATEWAY_REQUEST_SECONDS = _family(
    "gateway",
    "toolfleet_gateway_request_seconds",
    "How long this gateway took to answer; a stream until its end.",
    "route",
    TOOL,
)

REDIS_UP = _family("fleet", "toolfleet_redis_up", "Whether the fleet's Redis has answered.")
BROKER_UP = _family(
    "fleet",
    "toolfleet_broker_up",
    "Whether the broker has said how much waits; left out while the fleet's Redis is away.",
)
FLEET_READ = _family(
    "fleet", "toolfleet_fleet_read_seconds", "How long it took to ask Redis, and RabbitMQ, for the fleet."
)
QUEUE_WAITING = _family("fleet", "toolfleet_queue_waiting", "Messages that wait in a queue.", "queue lane")
QUEUE_OLDEST = _family(
    "fleet",
    "toolfleet_queue_oldest_seconds",
    "Since when the oldest call of a queue has waited; 0 where none does; left out with RabbitMQ.",
    "queue lane",
)
QUEUE_RUNNING = _family(
    "fleet", "toolfleet_queue_running", "Calls of a queue that workers run, as they said last.", "queue lane"
)
QUEUE_WORKERS = _family("fleet", "toolfleet_queue_workers", "Live workers that take from a queue.", "queue lane")
QUEUE_STATE = _family(
    "fleet",
    "toolfleet_queue_state",
    "What operators have done to a queue: 0 nothing, 1 it drains, 2 it is paused.",
    "queue lane",
)
LANE_WORKERS = _family("fleet", "toolfleet_lane_workers", "Live workers of a lane.", "lane")
LANE_SLOTS = _family("fleet", "toolfleet_lane_slots", "Calls that a lane's workers may run at once.", "lane")
LANE_WANTED = _family(
    "fleet",
    "toolfleet_lane_workers_wanted",
    "Workers that a lane needs: running and waiting calls by the slots of one.",
    "lane",
)
HELD = _family(
    "fleet", "toolfleet_messages_held", "Messages that workers have taken and not acknowledged; left out with RabbitMQ."
)
BREAKER = _family(
    "fleet", "toolfleet_breaker_state", "A module's breaker: 0 closed, 1 letting calls in gradually, 2 open.", "module"
)
MODULE_FAILURES = _family(
    "fleet", "toolfleet_module_failures", "Calls in a row that a module has not answered.", "module"
)
APPROVALS_WAITING = _family("fleet", "toolfleet_approvals_waiting", "Calls that wait for people's approval.")
JOBS = _family("fleet", "toolfleet_jobs", "Jobs that have not ended.")
JOBS_DUE = _family("fleet", "toolfleet_jobs_due", "Jobs of which something is due now.")
JOBS_LATE = _family("fleet", "toolfleet_jobs_late", "Jobs that should have been looked at five seconds ago.")
WAKEUPS_WAITING = _family("fleet", "toolfleet_wakeups_waiting", "Wake-ups that have not been accepted yet.", "kind")
DEAD_LETTERS = _family("fleet", "toolfleet_dead_letters", "Dead letters that wait for an operator.", "kind")
QUARANTINED = _family("fleet", "toolfleet_quarantined_total", "Items that lay in a queue and were no calls.")
REGISTRY_CHANGES = _family(
    "fleet", "toolfleet_registry_changes_total", "Changes of manifests, tools and modules.", "kind"
)

FAMILIES: Final[tuple[Family, ...]] = tuple(value for value in list(vars().values()) if isinstance(value, Family))
"""All of them, in the order in which they are shown."""
