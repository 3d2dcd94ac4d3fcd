"""Reads how a fleet is doing, for an operator: workers, queues, modules in trouble, and what waits or has died.

Every read is bounded, and all of them together end within three seconds.
"""

import contextlib
import json
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.config.run_file import run_file_of
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER
from toolfleet_registry.directory.directory import ModuleDirectory, ProbeFailure, state_without_manifest
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import BrokerAway, FleetUnavailable
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.policy.module_troubles import words_for
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import answering, async_client
from toolfleet_registry.redis.urls import fleet_url, is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.clock import READ
from toolfleet_tasks.presence import read_notes, workers_by_queue
from toolfleet_tasks.queue_states import QueueStates, QueueStateStore
from toolfleet_tasks.queues import CONTROL, lane_of, queue_of
from toolfleet_tasks.scripts import SLOTS_COUNT_SECONDS, script

QUEUES = script("queues/oldest")
"""Returns of each queue that holds something its number, from 1, its length, and its oldest message, '' if that is not known."""

BREAKERS = script("breaker/failing")
"""Returns of each breaker that has seen failures its number, from 1, what it is, for how many ms, the failures in a row, and why it was opened."""

_AT_ONCE = 1000  # keys of one step of SCAN: Redis is at them for about a millisecond

ShownState = Literal["open", "paused", "draining"]

_SECONDS = 2.5  # for everything: with its start, a command takes 5 s at most

BROKER_SECONDS = 1.5
"""For an answer of a broker of its own."""

_FLEET_STATUS_AT_ONCE = 500  # queues or breakers of one script: Redis is at them for about a millisecond
_LARGEST_MESSAGE, _MESSAGES = 64 * 2**10, 50  # bytes of a message that is brought to see how old it is, and how many
_OVERDUE_MS = 5_000  # a job that is due is looked at within a second or two
_AS_BYTES = {NEVER_DECODE: True}


@dataclass(slots=True)
class KeyCensus:
    """The result of a census.

    `by_rule` counts keys by the pattern of their rule. `endless` have no TTL and should have one, by that pattern.

    `foreign`: how many keys no rule knows. `is_whole`: all keys were seen. Names of keys may hold ids, and are not in
    here.
    """

    by_rule: Counter[str] = field(default_factory=Counter[str])
    endless: Counter[str] = field(default_factory=Counter[str])
    foreign: int = 0
    seen: int = 0
    is_whole: bool = True


async def count_keys(redis: Redis, keys: Keys, *, at_most: int) -> KeyCensus:
    """Look at keys with the fleet's prefix until all were seen, or so many. Raises redis-py's errors."""
    census, cursor = KeyCensus(), 0
    while True:
        cursor, found = await redis.scan(cursor, match=f"{keys.prefix}*", count=_AT_ONCE)
        await _take(redis, keys, [_text(key) for key in found], census)
        if cursor == 0:
            return census
        if census.seen >= at_most:
            census.is_whole = False
            return census


async def _take(redis: Redis, keys: Keys, names: list[str], census: KeyCensus) -> None:
    census.seen += len(names)
    asked = list[tuple[str, str]]()
    for name in names:
        rule = keys.rule_of(name)
        if rule is None:
            census.foreign += 1
            continue
        census.by_rule[rule.pattern.pattern] += 1
        if rule.lasting is None:
            asked.append((name, rule.pattern.pattern))
    pipe = redis.pipeline(transaction=False)
    for name, _ in asked:
        pipe.ttl(name)
    for (_, pattern), left in zip(asked, await pipe.execute(), strict=True):
        if left == -1:
            census.endless[pattern] += 1


def _text(key: bytes | str) -> str:
    return key if isinstance(key, str) else key.decode(errors="replace")


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
    have been looked at seconds ago. `wakes` wait for a try, and nobody has accepted `dead_wakes` and `dead_webhooks`. `quarantined`:
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
    """The status of the fleet that the settings name. Raises `FleetUnavailable` within 3 s, or `SettingsError` if they name none."""
    client = async_client(fleet_url(settings.redis_url), master=settings.sentinel_master, timeout_seconds=_SECONDS)
    async with client as redis, answering(redis, seconds=_SECONDS):
        known = KnownModules(settings)
        directory = ModuleDirectory(redis, settings)
        known.take((await directory.read()).entries)
        states = await QueueStateStore(redis, settings).read()
        return await _Reading(settings, known, redis, await directory.failures.read(), states).status()


class _Reading:
    def __init__(
        self,
        settings: Settings,
        known: KnownModules,
        redis: Redis,
        failures: Mapping[str, ProbeFailure],
        states: QueueStates,
    ) -> None:
        self._settings = settings
        self._states = states
        self._keys = settings.keys
        self._names = known.names  # and not what was removed: in its queue something may wait
        self._modules = sorted(known.names | known.served | known.ending)
        self._lanes: dict[str, Literal["fast", "slow"]] = {
            module: lane_of(module, known.settings) for module in self._modules
        }
        self._redis = redis
        self._local = run_file_of(settings.redis_url)
        self._errors = {module: failure.error for module, failure in failures.items()}

    async def status(self) -> FleetStatus:
        read = READ.parameters(clock_key=self._keys.clock, notes_key=self._keys.clock_notes, shown="", note="")
        now = float((await self._redis.eval(READ.text, *read))[1]) / 1e6
        lanes = (await self._lane("fast"), await self._lane("slow"))
        workers, broker_error = await workers_by_queue(self._settings), None
        try:
            queues, held = await self._queues(now, workers)
        except BrokerAway as exc:
            queues, held, broker_error = (), None, str(exc)
        keys, redis = self._keys, self._redis
        counted = redis.pipeline(transaction=False)
        dead = keys.dead_order, keys.dead_wakes_order, keys.dead_webhooks("-order")
        for name in (*dead, keys.jobs_due, keys.wakes_due, keys.calls_due):
            counted.zcard(name)
        counted.zcount(keys.jobs_due, "-inf", now * 1000 - _OVERDUE_MS)
        counted.llen(keys.quarantine)
        letters, dead_wakes, dead_webhooks, jobs, wakes, calls, overdue, quarantined = await counted.execute()
        return FleetStatus(
            lanes=lanes,
            queues=queues,
            troubles=tuple(await self._troubles()),
            held=held,
            dead_letters=letters,
            jobs=jobs,
            overdue_jobs=overdue,
            wakes=wakes + calls,
            dead_wakes=dead_wakes,
            dead_webhooks=dead_webhooks,
            quarantined=quarantined,
            broker_error=broker_error,
            not_applied=() if self._local is None else tuple(dict.fromkeys(self._local.not_applied.values())),
        )

    async def _lane(self, lane: Literal["fast", "slow"]) -> LaneStatus:
        now = (await self._redis.time())[0]
        name, since = self._keys.slots(lane), now - SLOTS_COUNT_SECONDS
        notes: list[bytes] = await _ask(self._redis, "ZRANGEBYSCORE", name, since, "+inf")
        slots = sum(int(words[0]) for note in notes if (words := note.split()) and words[0].isdigit())
        modules = tuple(module for module in self._modules if self._lanes[module] == lane and module in self._names)
        return LaneStatus(lane, tuple(worker.name for worker in read_notes(notes)), slots, modules)

    async def _queues(self, now: float, workers: Counter[str]) -> tuple[tuple[QueueStatus, ...], int | None]:
        names = [CONTROL, *(queue_of(module) for module in self._modules)]
        broker = str(self._settings.broker)
        if not is_redis_url(broker):
            lengths = await self._rabbitmq_lengths(names)
            found = [(name, length, b"") for name, length in zip(names, lengths, strict=True) if length]
            return self._sorted(found, now, workers), None
        if broker == self._settings.redis_url:
            return await self._redis_queues(self._redis, names, now, workers)
        client = async_client(broker, master=self._settings.sentinel_master)
        try:
            async with client as redis, answering(redis, seconds=BROKER_SECONDS):
                return await self._redis_queues(redis, names, now, workers)
        except FleetUnavailable as exc:
            raise BrokerAway(f"The broker does not answer: {exc}") from exc

    async def _rabbitmq_lengths(self, names: Sequence[str]) -> list[int]:
        # Celery takes longer to load than all the rest, and at Redis nothing needs it.
        from toolfleet_tasks.operations.queue_lengths import QueueLengths  # noqa: PLC0415

        with contextlib.closing(QueueLengths(self._settings)) as lengths:
            return await lengths.read(names, seconds=BROKER_SECONDS)

    async def _redis_queues(
        self, redis: Redis, names: Sequence[str], now: float, workers: Counter[str]
    ) -> tuple[tuple[QueueStatus, ...], int | None]:
        found = list[tuple[str, int, bytes]]()
        for part in _parts(names):
            keys = [self._keys.queue(name) for name in part]
            answer: list[tuple[int, int, bytes]] = await _ask(
                redis, *QUEUES.command(queues=keys, most_bytes=_LARGEST_MESSAGE, most_reads=_MESSAGES)
            )
            found += [(part[number - 1], length, oldest) for number, length, oldest in answer]
        return self._sorted(found, now, workers), int(await redis.hlen(f"{self._keys.prefix}unacked"))

    def _sorted(
        self, found: Iterable[tuple[str, int, bytes]], now: float, workers: Counter[str]
    ) -> tuple[QueueStatus, ...]:
        lanes: dict[str, Literal["fast", "slow"]] = {queue_of(module): lane for module, lane in self._lanes.items()}
        states: dict[str, ShownState] = {
            queue_of(module): state.state
            for module, lane in self._lanes.items()
            if (state := self._states.of(module, lane)) is not None
        }
        empty = {name: (name, 0, b"") for name in states}
        queues = [
            QueueStatus(
                queue=name,
                lane=lanes.get(name, "fast"),
                waiting=length,
                oldest_seconds=age_of(message, now),
                workers=workers[name],
                state=states.get(name, "open"),
            )
            for name, length, message in {**empty, **{one[0]: one for one in found}}.values()
        ]
        return tuple(sorted(queues, key=lambda queue: (-queue.waiting, queue.queue)))

    async def _troubles(self) -> list[ModuleTrouble]:
        """One a module at most: a breaker says more than a manifest."""
        found = dict[str, ModuleTrouble]()
        for part in _parts([module for module in self._modules if module != SCHEDULER]):
            pipe = self._redis.pipeline(transaction=False)
            for module in part:
                pipe.ttl(self._keys.module_manifest(module))
            for module, left in zip(part, await pipe.execute(), strict=True):
                if (trouble := self._of_manifest(module, left)) is not None:
                    found[module] = trouble
            keys = [self._keys.breaker(module) for module in part]
            answer: list[tuple[int, bytes, int, bytes, bytes]] = await _ask(
                self._redis, *BREAKERS.command(breakers=keys)
            )
            for number, kind, rest, failures, why in answer:
                name = part[number - 1]
                found[name] = _of_breaker(name, kind.decode(), rest, int(failures), why.decode())
        for module, reason in (await self._not_ready()).items():
            found[module] = ModuleTrouble(module, "not ready", error=reason)
        return [found[module] for module in sorted(found)]

    async def _not_ready(self) -> dict[str, str]:
        """Return why modules that the fleet on this machine should serve are not served: the state of the process, or what it says."""
        if self._local is None:
            return {}
        modules = {each.module for each in self._local.processes.values() if each.module is not None}
        cache = ManifestCache(self._redis, ttl_seconds=self._settings.manifest_ttl_seconds, keys=self._keys)
        offered = {module: cached.manifest for module, cached in (await cache.load(modules)).items()}
        empty = {name: each.load_errors for name, each in offered.items() if each.load_errors and not each.tools}
        return {**{name: errors[0].message for name, errors in empty.items()}, **self._local.not_ready}

    def _of_manifest(self, module: str, left: int) -> ModuleTrouble | None:
        error = self._errors.get(module)
        if module == LOCAL:  # which is where its workers are: it is as they say
            return None if error is None else ModuleTrouble(module, state_without_manifest(error), error=error)
        if left < 0:
            return ModuleTrouble(module, state_without_manifest(error), error=error)
        age = float(self._settings.manifest_ttl_seconds - left)
        if error is None and age <= self._settings.manifest_stale_seconds:
            return None
        return ModuleTrouble(module, "stale", seconds=age, error=error)


def age_of(message: bytes, now: float) -> float | None:
    """Return how long ago (seconds) a call's message was published, by its own timestamp; `None` if it is no call's message.

    Verifies nothing: it is only displayed.
    """
    try:
        text = json.loads(b64decode(json.loads(message)["body"]))[0][0]
        published_at = json.loads(text if text.startswith("{") else text.partition(" ")[2])["published_at"]
        return max(0.0, now - float(published_at))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _of_breaker(module: str, kind: str, rest_ms: int, failures: int, why: str) -> ModuleTrouble:
    unanswered = f"{failures} {'call' if failures == 1 else 'calls'} in a row without an answer"
    if kind == "closed":
        return ModuleTrouble(module, "failing", failures, reason=unanswered)
    if kind == "half":
        return ModuleTrouble(module, "recovering", failures, reason="it answers; calls are let in a few at a time")
    return ModuleTrouble(
        module, "away", failures, rest_ms / 1000, reason=unanswered if why == "failed" else words_for(why)
    )


async def _ask(redis: Redis, *words: str | float) -> Any:
    return await redis.execute_command(*words, **_AS_BYTES)


def _parts(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + _FLEET_STATUS_AT_ONCE] for start in range(0, len(names), _FLEET_STATUS_AT_ONCE)]
