"""Defines the fleet's own tasks: beat has any worker ask all modules for their tools and do the due work of jobs; canaries test a queue.

Each is safe to run twice, late, or never. A canary is a message that shows that a queue is served and its module reached: it runs no
tool, claims nothing and leaves no line in the audit. Workers of versions that do not know it drop it, and say so. The work of jobs is
plugged into the app (`app.resume_jobs`, `app.evaluate_job`), as it publishes calls: due work stays due until a worker has done it.
"""

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, Task
from celery.signals import beat_init
from pydantic import BaseModel, ConfigDict, ValidationError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.requests import MODULES_AT_ONCE, RequestedProbes
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.redis.keys import canary_key
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import hide_process, this_process
from toolfleet_tasks.clock import MOST_OFFSET_SECONDS
from toolfleet_tasks.control.server_check import say_faults
from toolfleet_tasks.greenlet_bridge import bridged, run_here
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.ids import EVALUATE, RESUME, RESUME_PROGRAMS
from toolfleet_tasks.queues import CONTROL

if TYPE_CHECKING:
    from toolfleet_registry.catalog.catalog import Catalog

REFRESH: Final = "toolfleet.refresh_manifests"
SWEEP: Final = "toolfleet.sweep_artifacts"
CANARY: Final = "toolfleet.canary"
"""The task that answers a canary. Its arguments: the canary's id, and the module that the worker asks for its health, '' for none."""

KEPT_SECONDS = 60
"""How long an answer is kept for the client that has asked."""

_REQUEST = "toolfleet_tasks.control.celery_worker:HousekeepingRequest"  # by name: agents import no parts of a worker
_ID = re.compile(r"[0-9a-f]{32}")
_HEALTH_SECONDS = 2.0
_ANSWER_SECONDS = 2.0
_CANARY_SECONDS = 10.0
_CANARY_MARGIN_SECONDS = 5.0
_SWEEP_SECONDS = 60.0  # and how often: what has expired cannot be read meanwhile
_JOBS_SECONDS = 20.0  # of one task's work; what is left is the next one's
_JOBS_MARGIN_SECONDS = 10
_PROGRAMS_SECONDS = 5.0  # between two sweeps: the ends of their calls are told, and these find what was lost
# The control queue may be so far behind, in addition to clocks' differences: a tick that is dropped is one that all workers may
# drop, for ever. Those that pile up meanwhile cost next to nothing: of several in one worker one works.
_SHORTEST_EXPIRY_SECONDS, _TICKS = 30.0, 10

log = get_logger(__name__)


def register(app: Celery, settings: Settings) -> None:
    """Give the app the tasks. Each works for a bounded time; the limits are the net around that."""
    rounds = -(-max(len(settings.module_services), 1) // MODULES_AT_ONCE)
    # The longest look at all modules, and time to store what was found.
    limit = settings.discovery_timeout_seconds * rounds + 20
    # Not shared: Celery would give it to all apps of the process, and the first one's limit with it.
    _register(app, REFRESH, _refresh, limit, 10, shared=False)
    _register(app, RESUME, _resume, _JOBS_SECONDS + _JOBS_MARGIN_SECONDS, _JOBS_MARGIN_SECONDS)
    _register(app, EVALUATE, _evaluate, _JOBS_SECONDS + _JOBS_MARGIN_SECONDS, _JOBS_MARGIN_SECONDS)
    if settings.artifact_store is not None:
        _register(app, SWEEP, _sweep, _SWEEP_SECONDS, _JOBS_MARGIN_SECONDS)
    if settings.programs:
        _register(app, RESUME_PROGRAMS, _resume_programs, _JOBS_SECONDS + _JOBS_MARGIN_SECONDS, _JOBS_MARGIN_SECONDS)
    _register(app, CANARY, _answer, _CANARY_SECONDS, _CANARY_MARGIN_SECONDS)


def _register(app: Celery, name: str, body: Callable[..., Any], limit: float, margin: float, **options: Any) -> None:
    """Register a task that tells Celery's events of failures only: there is one each second, and Flower's rows are the calls'."""
    limits = {"soft_time_limit": limit, "time_limit": limit + margin}
    app.task(name=name, bind=True, ignore_result=True, send_events=False, Request=_REQUEST, **limits, **options)(body)


def schedule(settings: Settings) -> dict[str, Any]:
    """Return beat's entries. A tick that was not served for long is dropped: they do the same work."""
    interval = settings.jobs_interval_seconds
    expires = max(_SHORTEST_EXPIRY_SECONDS, _TICKS * interval) + MOST_OFFSET_SECONDS
    options = {"queue": CONTROL, "expires": expires}
    entries: dict[str, Any] = {
        "refresh-manifests": {
            "task": REFRESH,
            "schedule": settings.refresh_interval_seconds,
            "options": {"queue": CONTROL, "expires": _refresh_expiry(settings)},
        },
        "resume-jobs": {"task": RESUME, "schedule": interval, "options": options},
    }
    if settings.artifact_store is not None:
        entries["sweep-artifacts"] = {"task": SWEEP, "schedule": _SWEEP_SECONDS, "options": options}
    if settings.programs:
        entries["resume-programs"] = {"task": RESUME_PROGRAMS, "schedule": _PROGRAMS_SECONDS, "options": options}
    return entries


def _refresh_expiry(settings: Settings) -> float:
    """Return the expiry in seconds from now, by beat's own clock; workers judge by theirs."""
    return settings.refresh_interval_seconds + MOST_OFFSET_SECONDS


async def refresh_manifests(settings: Settings, *, now: float | None = None) -> bool:
    """Refresh once for the present time slot; whether this call did it. Two beats, or one that stutters, do no harm."""
    slot = int((fleet_clock.now() if now is None else now) // settings.refresh_interval_seconds)
    keys = settings.keys
    async with settings.redis_client() as redis:
        if not await redis.set(keys.refresh_slot(slot), 1, nx=True, ex=math.ceil(settings.refresh_interval_seconds)):
            return False
        await _probe(redis, settings)
    return True


async def probe_for_agents(settings: Settings, number: int) -> None:
    """Ask all modules, if no other worker does already, because agents have asked for it the `number`th time."""
    async with settings.redis_client() as redis:
        requested_probes = RequestedProbes(redis, settings.keys)
        if await requested_probes.begin(number):
            await _probe(redis, settings)
            await requested_probes.end(number)


async def _probe(redis: Redis, settings: Settings) -> None:
    catalog = await asyncio.to_thread(_catalog, redis, settings)
    statuses = await catalog.refresh()
    failed = sorted(name for name, status in statuses.items() if not status.ok)
    log.info("manifests_refreshed", modules=len(statuses), failed=failed)
    await _renew_profiles(redis, settings)


async def _renew_profiles(redis: Redis, settings: Settings) -> None:
    """Renew the copy of profiles.

    Fails open: agents and workers keep the known profiles, and the next tick renews them.
    """
    from toolfleet_registry.agents.stored_profiles import ProfileCopy
    from toolfleet_registry.catalog.operator import fleets_registry

    copy = ProfileCopy(redis, settings)
    if not copy.is_needed:
        return
    try:
        async with fleets_registry(settings):
            await copy.renew()
            await copy.sign_again()
    except (FleetUnavailable, SettingsError) as exc:
        log.warning("agent_profiles_not_renewed", error=str(exc))


def _catalog(redis: Redis, settings: Settings) -> "Catalog":
    from toolfleet_registry.catalog.catalog import Catalog  # with an HTTP client: a tenth of a worker's start

    return Catalog(
        settings,
        ManifestCache(redis, ttl_seconds=settings.manifest_ttl_seconds, keys=settings.keys),
        directory=ModuleDirectory(redis, settings),
    )


@bridged
async def _refresh(task: Task) -> None:
    await refresh_manifests(task.app.settings)


def _hide(sender: Any, **_: object) -> None:
    if sender.app.settings.hide_process:
        hide_process()


def _refresh_at_start(sender: Any, **_: object) -> None:
    """A new installation has no manifests: the first look does not wait for the first tick."""
    expires = _refresh_expiry(sender.app.settings)
    try:
        sender.app.send_task(REFRESH, queue=CONTROL, expires=expires, ignore_result=True)
    except Exception as exc:  # noqa: BLE001 - kombu and its transports raise anything; the first tick will do
        log.warning("first_refresh_not_published", error=str(exc))
    run_here(say_faults(sender.app.settings))


beat_init.connect(_hide, weak=False)
beat_init.connect(_refresh_at_start, weak=False)


@bridged
async def _resume(task: Task) -> None:
    resume = task.app.resume_jobs
    if resume is not None:
        await resume(seconds=_JOBS_SECONDS)


@bridged
async def _evaluate(task: Task, job_id: str) -> None:
    evaluate = task.app.evaluate_job
    if evaluate is not None:
        await evaluate(job_id, seconds=_JOBS_SECONDS)


@bridged
async def _resume_programs(task: Task, program_id: str = "") -> None:
    resume = task.app.resume_programs
    if resume is not None:
        await resume(program_id, seconds=_JOBS_SECONDS)
    else:
        from toolfleet_tasks.transport.redis_publisher import resume_programs_soon  # of a worker

        await resume_programs_soon(task.app, program_id)


@bridged
async def _sweep(task: Task) -> None:
    from toolfleet_tasks.artifacts import sweep_artifacts  # of a fleet that has a store

    await sweep_artifacts(task.app.settings)


class CanaryAnswer(BaseModel):
    """A worker's answer.

    Times are the fleet's, in seconds since the epoch; `health` is that of the module, if it was asked.

    `worker`: its host and process id. `version`: the newest version of messages that it reads; `release` is
    Toolfleet's. `clock_lead`: by how many seconds its machine is ahead of the fleet's time.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFERS_BUILD)

    worker: str
    version: int
    release: str = ""
    taken_at: float
    answered_at: float
    health: str | None = None
    health_seconds: float | None = None
    clock_lead: float = 0.0
    artifacts: str | None = None
    """The text that the worker has read from the store of artifacts, where the doctor has written one."""


def is_canary_id(text: object) -> bool:
    """Return whether a message's argument may be a canary's id: it becomes a part of a key."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def read_answers(texts: Sequence[bytes | str]) -> list[CanaryAnswer]:
    """Return the answers in these texts, in their order; invalid ones are left out."""
    found = list[CanaryAnswer]()
    for text in texts:
        try:
            found.append(CanaryAnswer.model_validate_json(text))
        except ValidationError:
            continue
    return found


@bridged
async def _answer(task: Any, canary_id: str, module: str = "") -> None:
    if not is_canary_id(canary_id) or task.app.settings.redis_url is None:
        return
    taken_at, health, seconds = fleet_clock.now(), None, None
    if module and task.app.runner is not None:
        asked_at = machine_clock.monotonic()
        health = str(await task.app.runner.probe(module, seconds=_HEALTH_SECONDS))
        seconds = machine_clock.monotonic() - asked_at
    artifacts = None
    if task.app.settings.artifact_store is not None:
        from toolfleet_tasks.artifacts import read_probe

        artifacts = await read_probe(task.app.settings, seconds=_HEALTH_SECONDS)
    answer = CanaryAnswer(
        worker=this_process().name,
        version=json_text.VERSION,
        release=version("toolfleet"),
        taken_at=taken_at,
        answered_at=fleet_clock.now(),
        health=health,
        health_seconds=seconds,
        clock_lead=fleet_clock.clock.wall_lead,
        artifacts=artifacts,
    )
    await _leave(task.app.settings, canary_id, answer)


async def _leave(settings: Settings, canary_id: str, answer: CanaryAnswer) -> None:
    key = canary_key(settings.keys, canary_id)
    try:
        async with settings.redis_client(timeout_seconds=_ANSWER_SECONDS) as redis, redis.pipeline() as pipe:
            pipe.rpush(key, answer.model_dump_json())
            pipe.expire(key, KEPT_SECONDS)
            await pipe.execute()
    except (RedisError, OSError) as exc:
        log.warning("canary_not_answered", error=str(exc))
