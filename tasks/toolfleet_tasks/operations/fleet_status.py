"""Reads how a fleet is doing, for an operator: workers, queues, modules in trouble, and what waits or has died.

Every read is bounded, and all of them together end within three seconds.
"""

from dataclasses import dataclass, field
from typing import Literal

from redis.asyncio import Redis

from toolfleet_registry.config.run_file import RunFile, run_file_of
from toolfleet_registry.contracts.names import LOCAL
from toolfleet_registry.directory.directory import ModuleDirectory, state_without_manifest
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.policy.hints import words_for
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_tasks.clock import READ
from toolfleet_tasks.operations.fleet_facts import BreakerFacts, FleetFacts, FleetReader, in_parts

ShownState = Literal["open", "paused", "draining"]

_SECONDS = 2.5  # for everything: with its start, a command takes 5 s at most


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """A lane: its live workers by name, how many calls these run at once, and its modules."""

    lane: Literal["fast", "slow"]
    workers: tuple[str, ...]
    slots: int
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue that holds something, or that an operator has paused or drains, and how many workers of this version or a later one serve it.

    `oldest_seconds`: since its oldest call was published, as far as that is known. `state`: `open`, `paused` or `draining`.
    """

    queue: str
    lane: Literal["fast", "slow"]
    waiting: int
    oldest_seconds: float | None = field(default=None, kw_only=True)
    workers: int
    state: ShownState = "open"


@dataclass(frozen=True, slots=True)
class ModuleTrouble:
    """A module with which something is wrong.

    `away`: it is left alone; `recovering`: it answers again, and calls are let in gradually; `failing`: so many calls in a row were not answered;
    `not ready`: the local fleet's process for it does not serve it; `stale`: its last good manifest is `seconds` old; else there is none, and it is as `state_without_manifest` says.
    `error`: why the last look at it has failed; `reason`: what calls have met, in words.
    """

    module: str
    trouble: str
    failures: int = 0
    seconds: float | None = None
    error: str | None = None
    reason: str = ""

    @property
    def words(self) -> str:
        """Return what is wrong with it, in words."""
        return self.reason or self.error or ""


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """A fleet at one moment.

    `held`: calls that workers have taken, `None` where that is not known. `jobs` have not ended, and `overdue_jobs` of them should
    have been looked at seconds ago. `wakes` wait for a try; no receiver has accepted `dead_wakes` and `dead_webhooks`. `quarantined`:
    what lay in a queue and was no call. `broker_error`: why a broker that is not the fleet's Redis does not say what waits. `not_applied`: lines of `toolfleet.toml` that are not in effect in a fleet on this machine, and why.
    """

    lanes: tuple[LaneStatus, ...]
    queues: tuple[QueueStatus, ...]
    troubles: tuple[ModuleTrouble, ...]
    held: int | None = field(default=None, kw_only=True)
    dead_letters: int
    jobs: int
    overdue_jobs: int
    wakes: int
    dead_wakes: int
    dead_webhooks: int
    quarantined: int
    not_applied: tuple[str, ...] = field(default=(), kw_only=True)
    broker_error: str | None = field(default=None, kw_only=True)


async def read_status(settings: Settings) -> FleetStatus:
    """Read the status of the fleet that the settings name. Raises `FleetUnavailable` within 3 s, or `SettingsError` if they name none."""
    keys = settings.keys
    async with (
        FleetReader.of(settings, timeout_seconds=_SECONDS) as reader,
        answering(reader.redis, seconds=_SECONDS),
    ):
        read = READ.parameters(clock_key=keys.clock, notes_key=keys.clock_notes, shown="", note="")
        facts = await reader.read(now=float((await reader.redis.eval(READ.text, *read))[1]) / 1e6)
        local, counts, names = run_file_of(settings.redis_url), facts.counts, reader.known.names
        return FleetStatus(
            lanes=tuple(
                LaneStatus(
                    one.lane,
                    one.names,
                    sum(one.slots),
                    # Not those that were removed: in their queues something may wait.
                    tuple(module for module, lane in facts.modules.items() if lane == one.lane and module in names),
                )
                for one in facts.lanes
            ),
            queues=() if facts.broker_error is not None else _queues(facts),
            troubles=tuple(await _troubles(reader.redis, settings, facts, local)),
            held=facts.held,
            dead_letters=counts["dead_calls"],
            jobs=counts["jobs"],
            overdue_jobs=counts["jobs_late"],
            wakes=counts["wakeups"] + counts["wakeup_calls"],
            dead_wakes=counts["dead_wakeups"],
            dead_webhooks=counts["dead_webhooks"],
            quarantined=counts["in_quarantine"],
            broker_error=facts.broker_error,
            not_applied=() if local is None else tuple(dict.fromkeys(local.not_applied.values())),
        )


def _queues(facts: FleetFacts) -> tuple[QueueStatus, ...]:
    queues = [
        QueueStatus(
            queue=one.queue,
            lane=one.lane,
            waiting=one.all_waiting or 0,
            oldest_seconds=one.oldest_seconds if one.waiting else None,
            workers=one.workers,
            state="open" if one.state is None else one.state.state,
        )
        for one in facts.queues
        if one.all_waiting or one.state is not None
    ]
    return tuple(sorted(queues, key=lambda queue: (-queue.waiting, queue.queue)))


async def _troubles(redis: Redis, settings: Settings, facts: FleetFacts, local: RunFile | None) -> list[ModuleTrouble]:
    """Return one a module at most: a breaker says more than a manifest."""
    errors = {
        module: failure.error for module, failure in (await ModuleDirectory(redis, settings).failures.read()).items()
    }
    found = dict[str, ModuleTrouble]()
    for part in in_parts([module for module in facts.modules if module not in settings.worker_modules]):
        pipe = redis.pipeline(transaction=False)
        for module in part:
            pipe.ttl(settings.keys.module_manifest(module))
        for module, left in zip(part, await pipe.execute(), strict=True):
            if (trouble := _of_manifest(module, left, errors.get(module), settings)) is not None:
                found[module] = trouble
    found |= {one.module: _of_breaker(one) for one in facts.breakers if one.failures or one.state != "closed"}
    for module, reason in (await _not_ready(redis, settings, local)).items():
        found[module] = ModuleTrouble(module, "not ready", error=reason)
    return [found[module] for module in sorted(found)]


async def _not_ready(redis: Redis, settings: Settings, local: RunFile | None) -> dict[str, str]:
    """Return why modules that the fleet on this machine should serve are not served: the state of the process, or what it says."""
    if local is None:
        return {}
    modules = {each.module for each in local.processes.values() if each.module is not None}
    cache = ManifestCache(redis, ttl_seconds=settings.manifest_ttl_seconds, keys=settings.keys)
    offered = {module: cached.manifest for module, cached in (await cache.load(modules)).items()}
    empty = {name: each.load_errors for name, each in offered.items() if each.load_errors and not each.tools}
    return {**{name: errors[0].message for name, errors in empty.items()}, **local.not_ready}


def _of_manifest(module: str, left: int, error: str | None, settings: Settings) -> ModuleTrouble | None:
    if module == LOCAL:  # which is where its workers are: it is as they say
        return None if error is None else ModuleTrouble(module, state_without_manifest(error), error=error)
    if left < 0:
        return ModuleTrouble(module, state_without_manifest(error), error=error)
    age = float(settings.manifest_ttl_seconds - left)
    if error is None and age <= settings.manifest_stale_seconds:
        return None
    return ModuleTrouble(module, "stale", seconds=age, error=error)


def _of_breaker(one: BreakerFacts) -> ModuleTrouble:
    unanswered = f"{one.failures} {'call' if one.failures == 1 else 'calls'} in a row without an answer"
    if one.state == "closed":
        return ModuleTrouble(one.module, "failing", one.failures, reason=unanswered)
    if one.state == "half":
        answers = "it answers; calls are let in a few at a time"
        return ModuleTrouble(one.module, "recovering", one.failures, reason=answers)
    reason = unanswered if one.reason == "failed" else words_for(one.reason)
    return ModuleTrouble(one.module, "away", one.failures, one.rest_ms / 1000, reason=reason)
