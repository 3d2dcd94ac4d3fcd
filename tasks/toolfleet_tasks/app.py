"""Makes the Celery app: the only file with Celery's settings, each with what happens without it.

The measurements behind the reasons: Celery 5.7 and kombu 5.7 on Redis 7, by killing, freezing and restarting things.
"""

import math
from collections.abc import Callable, Coroutine
from functools import cached_property  # kombu's asks for its lock each time that a call asks for the seal
from typing import Any
from urllib.parse import quote, urlsplit

from celery import Celery
from redis.asyncio.connection import parse_url

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.redis.servers import sentinel_options, tls_options
from toolfleet_registry.redis.urls import is_redis_url, is_sentinel_url, read_sentinel_url
from toolfleet_registry.settings import Settings, load_environment, load_settings
from toolfleet_registry.spans import Tracing
from toolfleet_registry.system.process import hide_process
from toolfleet_tasks import call_task
from toolfleet_tasks.broker import make_queue
from toolfleet_tasks.control import fleet_tasks, startup_checks
from toolfleet_tasks.messages.signing import Seal, seal_of
from toolfleet_tasks.queues import CONTROL, Lane, queues_of
from toolfleet_tasks.transport.kombu_publisher import KombuPublisher
from toolfleet_tasks.worker_runtime import RunCall, Runner

_CONNECT_SECONDS = 4  # Celery's default

BROKER_HEARTBEAT_SECONDS = 10
"""How often a worker and RabbitMQ hear of each other. By Celery's 120 a half-open connection is found after four minutes, in
which its worker takes no calls; RabbitMQ advises against less than 5."""


KeepArtifacts = Callable[[PublishedCall, ToolResult], Coroutine[Any, Any, ToolResult]]
"""Stores the large parts of a result, and returns it with their handles."""

JobWork = Callable[..., Coroutine[Any, Any, None]]
"""Keeps jobs going: raises `CancelledError` only, and returns within about `seconds`."""


class FleetApp(Celery):
    """The app of one process: its settings, its lane and, in a worker, what runs a call and what keeps jobs going.

    `modules` are those that the process knows of; in a worker `served_modules` keeps them in step with the directory.
    """

    log_cls = "toolfleet_tasks.control.celery_parts:FleetLogging"
    settings: Settings
    lane: Lane
    modules: KnownModules
    served_modules: object = None
    """A worker's `ServedModules`, which only its own start knows; `None` elsewhere."""
    runner: Runner | None = None
    run_call: RunCall | None = None
    """Runs a call's message in a worker."""
    resume_jobs: JobWork | None = None
    """Does due work of all jobs, or a part of it, and delivers their end events: `resume_jobs(seconds=…)`."""
    evaluate_job: JobWork | None = None
    """Processes a job whose call has ended: `evaluate_job(job_id, seconds=…)`."""
    resume_programs: JobWork | None = None
    """Goes on with one program, or with those that are due, in a worker that can run programs: `resume_programs(program_id, seconds=…)`."""
    tracing: Tracing | None = None
    keep_artifacts: KeepArtifacts | None = None
    """Stores the large parts of a call's result before its end, in a worker of a fleet that has a store."""

    @cached_property
    def has_redis_broker(self) -> bool:
        """Whether calls travel by our own transport, as the settings have it."""
        return self.settings.has_redis_broker

    @cached_property
    def seal(self) -> Seal:
        """The seal that signs published calls, and opens received ones."""
        return seal_of(self.settings)

    @cached_property
    def publisher(self) -> KombuPublisher:
        """The publisher through kombu. Closing it closes the app."""
        return KombuPublisher(self, seal=self.seal, signing=self.settings)

    @cached_property
    def Worker(self) -> type[Any]:  # noqa: N802 - Celery's name
        """The class that `celery worker` starts."""
        worker: type[Any] = self.subclass_with_self("toolfleet_tasks.control.celery_worker:FleetWorker")
        return worker


def make_app(settings: Settings, *, lane: Lane = "all", stores_results: bool = True) -> FleetApp:
    """Make an app for a worker of `lane`, for beat and Flower, or for a client (which stores no results).

    Reads nothing and connects to nothing. A worker needs `app.runner` set before it starts.
    """
    backend = _backend_url(settings) if stores_results else None
    kind = "Fleet" if settings.has_redis_broker else "RabbitMq"
    app = FleetApp(
        "toolfleet",
        broker=_celery_url(settings.broker),
        backend=backend,
        # Kombu's own transport waits for Redis with every message, and a broken connection has running calls run again.
        # Over RabbitMQ it stops a worker for good when half a frame has come and no more follows.
        amqp=f"toolfleet_tasks.transport.kombu_transport:{kind}AMQP",
        # Celery's own dispatcher takes a third of a worker's time, and its heartbeats wait on the loop for a broker that is away.
        events=f"toolfleet_tasks.transport.events:{kind}Events",
        # Celery's own has workers obey everybody who reaches the broker: an order ends them, or takes their queues away.
        control="toolfleet_tasks.control.celery_parts:FleetControl",
    )
    if not stores_results:  # a client: its caller wants to know soon that the broker is away
        app.conf.broker_connection_timeout = 1
    app.settings = settings
    app.lane = lane
    app.modules = KnownModules(settings)
    app.conf.update(_delivery(), **_broker(settings), **_results(settings), **_worker(settings))
    app.conf.task_queues = [make_queue(name) for name in queues_of(lane, settings)]
    app.conf.beat_schedule = fleet_tasks.schedule(settings)
    call_task.register(app)
    fleet_tasks.register(app, settings)
    startup_checks.install(app)
    return app


def __getattr__(name: str) -> FleetApp:
    """Make `app` and `flower` for Celery's command line on first use: importing this module reads no settings.

    For beat and Flower: it can read no results, which Flower would show to everybody who asks for them. Flower is a
    third-party program: it has the values of its environment, which no other process of its user can read, and reads no
    file, in which keys may be.
    """
    if name in {"app", "flower"}:
        settings = load_settings() if name == "app" else load_environment()
        if name == "flower" and settings.hide_process:
            hide_process()
        app = make_app(settings, stores_results=False)
        app.conf.broker_connection_timeout = _CONNECT_SECONDS  # these are not waited for
        return app
    raise AttributeError(name)


def _backend_url(settings: Settings) -> str | None:
    url = _celery_url(settings.redis_url)
    if url is None:
        return None
    # Celery's own backend waits for Redis three times with every result, sleeps on the loop while it is away, and drops
    # the result when it is full. And it signs nothing. With any broker, results go to Redis.
    where = "Sentinel" if url.startswith("sentinel") else ""
    return f"toolfleet_tasks.transport.result_backend:Fleet{where}Backend+{url.removeprefix('redis+')}"


def _celery_url(url: str | None) -> str | None:
    """Return a Redis URL as Celery writes it: each sentinel in full, a socket in another form.

    TLS is a setting of its own.
    """
    if url is None or not is_redis_url(url):
        return url
    if is_sentinel_url(url):
        there = read_sentinel_url(url)
        return ";".join(_address("sentinel", *host, there.username, there.password, there.db) for host in there.hosts)
    parts: dict[str, Any] = dict(parse_url(url))
    if "path" in parts:
        return f"redis+socket://{urlsplit(url).netloc}{urlsplit(url).path}?virtual_host={parts.get('db', 0)}"
    names = ("username", "password", "db")
    host, port = parts.get("host", "localhost"), parts.get("port", 6379)
    return _address(urlsplit(url).scheme, host, port, *map(parts.get, names))


def _address(scheme: str, host: str, port: int, username: str | None, password: str | None, db: int | None) -> str:
    credentials = f"{quote(username or '', safe='')}:{quote(password or '', safe='')}@" if username or password else ""
    return f"{scheme}://{credentials}{f'[{host}]' if ':' in host else host}:{port}/{db or 0}"


def _shared(url: str | None, settings: Settings) -> dict[str, Any]:
    """Return the options of the Redis at `url` that broker and backend share."""
    options: dict[str, Any] = {}
    if settings.key_prefix:
        options["global_keyprefix"] = settings.key_prefix
    if url is not None and is_sentinel_url(url):
        options["master_name"] = settings.sentinel_master
        options["sentinel_kwargs"] = sentinel_options(url)
    return options


def _delivery() -> dict[str, Any]:
    return {
        # Without late acks a killed worker takes its calls with it.
        "task_acks_late": True,
        # Else the process that lost its child would lose the message, or run a poisonous one for ever.
        "task_reject_on_worker_lost": False,
        # One row a call in Flower under its own name: "sent" events would carry the task's name instead.
        "task_send_sent_event": False,
        # The ledger knows what has begun, and what has ended: a mark of Celery's would be one more write a call.
        "task_track_started": False,
        # A misspelt queue must be an error, not an unread list.
        "task_create_missing_queues": False,
        "task_default_queue": CONTROL,
        # Our messages are one JSON string; anything else that lies in a queue is refused, pickle above all.
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        # A second publish after a lost answer would be a second call. The client decides, not kombu.
        "task_publish_retry": False,
    }


def _broker(settings: Settings) -> dict[str, Any]:
    conf: dict[str, Any] = {
        "broker_connection_retry_on_startup": True,
        # The default of 100 gives up after three quarters of an hour without Redis.
        "broker_connection_max_retries": None,
    }
    if not settings.has_redis_broker:
        conf["broker_heartbeat"] = BROKER_HEARTBEAT_SECONDS
        # Without them a loop waits for ever for what a half-open connection was asked, and calls stand still.
        conf["broker_transport_options"] = {"read_timeout": 2, "write_timeout": 2}
        # A worker that reconnects before RabbitMQ knows that its old connection is dead ends at its own, locked queue.
        conf["control_queue_exclusive"] = False
        conf["control_queue_durable"] = (
            True  # RabbitMQ 4.3 refuses queues that are neither; this one expires after 10 s
        )
    elif settings.broker:
        conf["broker_use_ssl"] = tls_options(settings.broker) or False
        conf["broker_transport_options"] = {
            **_shared(settings.broker, settings),
            # What a worker has not renewed for so long is lost. All that sweep must use one value.
            "visibility_timeout": settings.lease_seconds,
            # The default waits for ever on a half-open connection.
            "socket_timeout": 10,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            "health_check_interval": 10,
            # Four lists a queue else, and every wait lists all of them; we use no priorities.
            "priority_steps": [0],
        }
    return conf


def _results(settings: Settings) -> dict[str, Any]:
    return {
        # Without it a Redis restart loses results.
        "result_backend_always_retry": True,
        "result_expires": math.ceil(settings.result_ttl_seconds),
        # Arguments would be stored with every result.
        "result_extended": False,
        # The defaults (120 s and none) hang on a frozen Redis.
        "redis_socket_timeout": 5,
        "redis_socket_connect_timeout": 2,
        "redis_backend_health_check_interval": 30,
        "redis_backend_use_ssl": tls_options(settings.redis_url or "") or False,
        "result_backend_transport_options": {
            **_shared(settings.redis_url, settings),
            "retry_policy": {"max_retries": 2, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.5},
        },
    }


def _worker(settings: Settings) -> dict[str, Any]:
    return {
        # By name: an agent that uses this app never imports the workers' room.
        "worker_pool": "toolfleet_workers.pool.asyncio_pool:AsyncioPool",
        # Celery's own logs the whole of a message that it cannot take for a task.
        "worker_consumer": "toolfleet_tasks.control.celery_worker:FleetConsumer",
        "worker_concurrency": settings.worker_concurrency,
        # More than one message a slot would wait here while another worker is free.
        "worker_prefetch_multiplier": 1,
        # A long queue of retries after a reconnect comes back in steps.
        "worker_enable_prefetch_count_reduction": True,
        # Flower asks for the events of calls, but five seconds late: it would never know the first ones.
        "worker_send_task_events": True,
        # The fleet's logs are structured; Celery would put its own format over them.
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }
