"""The systems, each with its best settings: its environment, its client, its workers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from benchmarks.interpreters import OTHER_VERSIONS, environment_of
from benchmarks.stage import Stage

Kind = Literal["ours", "peer", "direct", "ceiling"]

WORKLOADS = ("W1", "W2", "W3", "W4")

THREADS = 100
"""What the threaded systems do best with; and what the others have calls enough for, bare lists excepted."""

ALL_AT_ONCE = 1000
"""For what takes as many calls at a time as there are: our own default."""


@dataclass(frozen=True)
class System:
    """One row of the tables. `worker` is what its interpreter is told; `most_in_flight` says more would only wait."""

    name: str
    title: str
    kind: Kind
    environment: str
    client: str
    worker: Sequence[str] | None = None
    workers: int = 1
    concurrency: int = THREADS
    most_in_flight: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    modules: Sequence[str] = ("instant", "wait50")
    has_flower: bool = False
    is_silent: bool = False  # sends no task events
    is_traced: bool = False  # 1 % of its calls, each from its agent to its worker
    has_metrics: bool = False  # for Prometheus, which asks its worker every second
    is_shipped: bool = False  # all that `toolfleet up` starts
    is_durable: bool = False  # with the Redis that it starts
    workloads: Sequence[str] = WORKLOADS

    def environment_variables(self, stage: Stage) -> dict[str, str]:
        """What its workers and its producer find in their environment."""
        services = {name: f"{stage.module_url}/{name}" for name in self.modules}
        return {
            "BENCH_REDIS_URL": stage.redis_url,
            "BENCH_MODULE_URL": stage.module_url,
            "BENCH_CONCURRENCY": str(self.concurrency),
            "TOOLFLEET_REDIS_URL": stage.redis_url,
            "TOOLFLEET_MODULE_SERVICES": json.dumps(services),
            "TOOLFLEET_LOG_LEVEL": "WARNING",
            # One user makes all calls, and W4 has no worker: what keeps one from taking everything is measured elsewhere.
            "TOOLFLEET_CALLS_PER_CALLER": "10000000",
            "TOOLFLEET_BACKLOG_LIMIT": "10000000",
            "TOOLFLEET_BACKLOG_BYTES": "1000000000000",  # else that limit has Redis weigh the queue at each call
            "PYTHONUNBUFFERED": "1",
            **(_traces_to(stage.collector_url) if self.is_traced else {}),
            **({"TOOLFLEET_METRICS_PORT": str(stage.metrics_port)} if self.has_metrics else {}),
            **self.settings,
        }


def _traces_to(url: str) -> dict[str, str]:
    sampler = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
    return {"TOOLFLEET_TRACES": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": url, **sampler}


def _celery(name: str, title: str, pool: str, concurrency: int, client: str = "celery") -> System:
    app = ("-m", "celery", "-A", "benchmarks.peers.celery.worker")
    worker = (*app, "worker", "-P", pool, "-c", str(concurrency), "-l", "WARNING", "-E")
    return System(name, title, "peer", "celery", client, worker)


def _peer(name: str, title: str, *worker: str, client: str = "", **more: int) -> System:
    return System(name, title, "peer", name, client or name, worker, **more)  # type: ignore[arg-type] # a concurrency


OURS = System(
    "toolfleet",
    "**toolfleet**",
    "ours",
    "toolfleet",
    "toolfleet",
    ("-m", "toolfleet_workers"),
)

CELERY = _celery("celery_threads", f"Celery, {THREADS} threads", "threads", THREADS)

GUARDED_AGENT = "guarded"
_GUARDS = (
    {"name": "tool_retry", "max_retries": 2},
    {"name": "tool_call_limit", "run_limit": 10_000_000, "thread_limit": 10_000_000},
    {"name": "pii", "pii_types": ["email", "phone", "credit_card", "iban", "ip", "mac_address", "url"]},
    {
        "name": "human_in_the_loop",
        "approve_tools": ["*.pay"],
    },  # of other tools: a call that waits for people has no rate
)

GUARDED = replace(
    OURS,
    name="toolfleet_guarded",
    title="**toolfleet**, an agent's profile with all four middleware",
    client="toolfleet:guarded",
    settings={"TOOLFLEET_AGENTS": json.dumps({GUARDED_AGENT: {"middleware": _GUARDS}})},
    workloads=("W1",),
)

SHIPPED = replace(
    OURS,
    name="toolfleet_shipped",
    title="**toolfleet** as `toolfleet up` starts it: Redis writes its file before it answers; Flower, beat, gateway",
    is_shipped=True,
    is_durable=True,
    has_flower=True,
    workloads=("W1", "W3"),
)

_RAW = ("-m", "benchmarks.peers.raw.worker")

RAW = System(
    "raw_batched",
    "bare Redis lists, batched",
    "ceiling",
    "raw",
    "raw:many",
    (*_RAW, "many"),
    concurrency=ALL_AT_ONCE,
)

SYSTEMS = (
    OURS,
    replace(
        OURS,
        name="toolfleet_2",
        title="**toolfleet**, 2 worker processes, 100 at a time each",
        workers=2,
        settings={"TOOLFLEET_WORKER_CONCURRENCY": "100"},  # with more slots than calls, the first takes them all
    ),
    replace(OURS, name="toolfleet_flower", title="**toolfleet**, Flower attached", has_flower=True),
    GUARDED,
    replace(
        OURS, name="toolfleet_traced", title="**toolfleet**, 1 % of calls traced", is_traced=True, workloads=("W1",)
    ),
    replace(OURS, name="toolfleet_metrics", title="**toolfleet**, with metrics", has_metrics=True, workloads=("W1",)),
    SHIPPED,
    replace(
        SHIPPED,
        name="toolfleet_shipped_memory",
        title="**toolfleet** as `toolfleet up` starts it, but for a Redis without persistence",
        is_durable=False,
    ),
    *(
        replace(
            OURS,
            name=f"toolfleet_py{version}",
            title=f"**toolfleet**, Python {version}",
            environment=environment_of(version),
            workloads=("W1",),
        )
        for version in OTHER_VERSIONS
    ),
    replace(OURS, name="toolfleet_silent", title="**toolfleet**, no events", is_silent=True, workloads=("W1",)),
    replace(
        OURS,
        name="toolfleet_100",
        title="**toolfleet**, 100 at a time",
        settings={"TOOLFLEET_WORKER_CONCURRENCY": "100"},
        workloads=("W2",),
    ),
    replace(
        OURS,
        name="toolfleet_40",
        title="**toolfleet**, 40 at a time",
        settings={"TOOLFLEET_WORKER_CONCURRENCY": "40"},
        workloads=("W2",),
    ),
    replace(
        OURS,
        name="toolfleet_40_2",
        title="**toolfleet**, 2 worker processes, 40 at a time each",
        workers=2,
        settings={"TOOLFLEET_WORKER_CONCURRENCY": "40"},  # so few that slots are the limit, and not this machine
        workloads=("W2",),
    ),
    CELERY,
    _celery("celery_to_thread", f"Celery, {THREADS} threads, asyncio.to_thread(get)", "threads", THREADS, "celery:200"),
    _celery("celery_prefork", "Celery, 8 processes", "prefork", 8),
    _celery("celery_gevent", f"Celery, {THREADS} greenlets", "gevent", THREADS),
    _peer(
        "taskiq",
        "taskiq, stream, 10 ms poll",
        *("-m", "taskiq", "worker", "benchmarks.peers.taskiq.worker:broker", "--workers", "1"),
        *("--max-async-tasks", str(THREADS), "--ack-type", "when_executed", "--log-level", "WARNING"),
    ),
    _peer("arq", "arq, 10 ms poll", "-m", "benchmarks.peers.arq.worker"),
    _peer("streaq", "streaq", "-m", "benchmarks.peers.streaq.worker"),
    _peer("saq", "saq", "-m", "saq", "benchmarks.peers.saq.worker.settings", "--quiet"),
    _peer(
        "dramatiq",
        f"dramatiq, {THREADS} threads",
        *("-m", "dramatiq", "benchmarks.peers.dramatiq.worker", "-p", "1", "-t", str(THREADS)),
    ),
    _peer(
        "huey",
        f"huey, {THREADS} threads",
        *("-m", "huey.bin.huey_consumer", "benchmarks.peers.huey.worker.huey", "-k", "thread", "-w", str(THREADS)),
        *("-n", "-q"),
    ),
    replace(_peer("rq", "rq, no fork", "-m", "benchmarks.peers.rq.worker"), most_in_flight={"W1": 50, "W2": 20}),
    System("inline_seed", "no queue: a new httpx client each call", "direct", "inline", "inline:new"),
    System("inline_pooled", "no queue: one httpx client", "direct", "inline", "inline:pooled"),
    System("inline_aiohttp", "no queue: aiohttp", "direct", "inline", "inline:aiohttp"),
    replace(RAW, name="raw", title="bare Redis lists", client="raw:one", worker=(*_RAW, "one")),
    RAW,
    replace(
        RAW,
        name="raw_batched_own",
        title="bare Redis lists, batched, with our connections to modules",
        environment="toolfleet",
        worker=(*_RAW, "own"),
        workloads=("W1", "W2"),
    ),
    replace(
        RAW,
        name="raw_batched_100",
        title="bare Redis lists, batched, 100 at a time",
        concurrency=100,
        workloads=("W2",),
    ),
)

BY_NAME = {system.name: system for system in SYSTEMS}
