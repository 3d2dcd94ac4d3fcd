"""Changes a fleet for its operator (modules, queues, wake-ups that wait); each change has its line in the audit."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from redis.asyncio import Redis

from toolfleet_registry.contracts.names import RESERVED
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.entries import ModuleEntry, ModuleNetworks, plain_url
from toolfleet_registry.directory.hosts import JudgedHosts
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import NotReplayable, OperationRefused
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.dead_letters.kept_wakes import KeptWake, KeptWakes, WantedWakes, search_waiting
from toolfleet_tasks.dead_letters.letters import DeadEntries
from toolfleet_tasks.operations.change_trail import Actor, ChangeKind, ChangeTrail, bounded
from toolfleet_tasks.queue_states import (
    LANE_PREFIX,
    QueueCondition,
    QueueState,
    QueueStates,
    QueueStateStore,
    StateChange,
    lane_name,
    stored_name,
)
from toolfleet_tasks.queues import lane_of

DRAIN_SECONDS = 30.0
"""For how long calls that wait for a removed module are run: most have ended by then, and their callers wait no longer."""

_PATIENCE_SECONDS = 5
_MOST_TRIES = 5  # while others change the same entry

LONGEST_REASON: Final = 256
"""Characters of a reason: it goes into the audit."""

_KINDS: Final[dict[str, ChangeKind]] = {"paused": "queue_paused", "draining": "queue_drained"}

MOST_AT_ONCE: Final = 1_000
"""Wake-ups that one step handles."""

_ABSENT = "There is no such wake-up."


class _Changes:
    """An operator's changes of a fleet. Each raises `OperationRefused`, and `FleetUnavailable` when Redis does not answer within 5 s.

    `by`: the author in the audit; `None`: this machine's user.
    """

    def __init__(self, redis: Redis, settings: Settings, by: Actor | None = None) -> None:
        self._redis, self._settings = redis, settings
        self._by = by or Actor.at_command_line()
        self._trail = ChangeTrail(redis, settings, self._by)
        self._directory = ModuleDirectory(redis, settings)

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, *, by: Actor | None = None) -> AsyncGenerator[Self]:
        """Open the changes for the fleet of these settings. Raises `SettingsError` if they name none."""
        async with settings.redis_client() as redis:
            yield cls(redis, settings, by)

    async def _now(self) -> float:
        """Return the time by Redis's clock, which workers use: this machine's may be off."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            seconds, micros = await self._redis.time()
        return float(seconds) + float(micros) / 1e6


class ModuleChanges(_Changes):
    """Operators' changes of the directory of modules."""

    async def add(self, entry: ModuleEntry) -> ModuleEntry:
        """Add a module, or give an existing one another lane or limit. Returns the stored entry."""
        url = plain_url(entry.url or "-")
        async with self._trail.change("module_added", entry.module, url=url, lane=entry.lane):
            return await self._add(entry)

    async def remove(self, module: str, *, drain_seconds: float = DRAIN_SECONDS) -> ModuleEntry:
        """Have a module take no more calls: waiting ones are run for `drain_seconds`, and ended then.

        Returns the stored entry.
        """
        async with self._trail.change("module_removed", module) as change:
            gone = await self._remove(module, drain_seconds)
            change.facts |= {"url": plain_url(gone.url or "-"), "lane": gone.lane}
            return gone

    async def _add(self, entry: ModuleEntry) -> ModuleEntry:
        self._check_name(entry.module)
        if fault := await ModuleNetworks(self._settings.module_networks).fault(
            str(entry.url), public_only=entry.public_only
        ):
            raise OperationRefused(f"Module {entry.module!r} is not added: {fault}.")
        await self._check_unannounced(entry.module, "nothing is added: end them first")
        entry = entry.model_copy(update={"added_at": await self._now()})
        for _ in range(_MOST_TRIES):
            text, present = await self._directory.entry(entry.module)
            await self._check_free(entry, present)
            if present is not None and _says(present) == _says(entry):
                return present
            # First: a pause that a look at an earlier module of that name has left is not this one's.
            async with answering(self._redis, seconds=_PATIENCE_SECONDS):
                await self._redis.delete(self._settings.keys.manifest_fetch(entry.module))
            if await self._directory.replace(entry.module, text, entry):
                return entry
        raise OperationRefused(f"Module {entry.module!r} keeps being changed by others: try again.")

    async def _remove(self, module: str, drain_seconds: float) -> ModuleEntry:
        for _ in range(_MOST_TRIES):
            text, present = await self._directory.entry(module)
            if present is None and text:
                await self._directory.replace(module, text, None)  # it counts for no module
                return ModuleEntry(module=module, removed_at=await self._now())
            if present is None or present.is_removed:
                hosts = await self._check_unannounced(module, "it is there as long as they are: end them")
                if module in hosts.modules:  # all of them have ended
                    await self._directory.forget_hosts(hosts, removed=module)
                    return ModuleEntry(module=module, removed_at=await self._now())
                raise OperationRefused(f"There is no module {module!r} in the fleet's directory.")
            if present.is_static and module in await self._directory.fed():
                raise OperationRefused(
                    f"Module {module!r} is in the settings of workers or beat: take it out of TOOLFLEET_MODULE_SERVICES there."
                )
            gone = present.model_copy(update={"removed_at": await self._now(), "drain_seconds": drain_seconds})
            if await self._directory.replace(module, text, None if present.is_static else gone):
                return gone
        raise OperationRefused(f"Module {module!r} keeps being changed by others: try again.")

    def _check_name(self, module: str) -> None:
        if module in RESERVED:
            raise OperationRefused(f"Module {module!r} is the fleet's own: another one needs another name.")

    async def _check_unannounced(self, module: str, otherwise: str) -> JudgedHosts:
        hosts = (await self._directory.read()).hosts
        found = hosts.modules.get(module)
        if found is not None and found.replicas:
            at = ", ".join(replica.url for replica in found.replicas)
            raise OperationRefused(f"Module {module!r} is announced by its hosts ({at}); {otherwise}.")
        return hosts

    async def _check_free(self, entry: ModuleEntry, present: ModuleEntry | None) -> None:
        if present is None or present.is_removed:
            return
        if present.is_static and entry.module in await self._directory.fed():
            raise OperationRefused(
                f"Module {entry.module!r} is in the settings of workers or beat, which come first: nothing is added."
            )
        if not present.is_static and present.url != entry.url:
            raise OperationRefused(
                f"Module {entry.module!r} is at {plain_url(present.url or '-')} already, and the older address stays: "
                f"`toolfleet modules remove {entry.module}` first."
            )


def _says(entry: ModuleEntry) -> tuple[object, ...]:
    said = entry.url, entry.slow, entry.timeout_seconds, entry.scales_from_zero
    return *said, entry.public_only, entry.removed_at, entry.origin


class QueueChanges(_Changes):
    """Operators' changes of queues.

    Each is named by its module (`crm`), by itself (`tools.crm`), or by its lane (`lane:slow`), which is all of them. Raises
    `NoSuchQueue` as well.
    """

    @property
    def _store(self) -> QueueStateStore:
        return QueueStateStore(self._redis, self._settings)

    async def pause(self, name: str, reason: str = "") -> StateChange:
        """Have workers begin nothing more of a queue: what runs goes on, and calls wait within their deadlines."""
        return await self._set(name, "paused", reason)

    async def drain(self, name: str, reason: str = "") -> StateChange:
        """Have a queue take no new calls: those that wait are run."""
        return await self._set(name, "draining", reason)

    async def resume(self, name: str, reason: str = "") -> StateChange:
        """End both. What holds for a lane is ended for that lane only."""
        known, states = await self._known(), await self._store.read()
        async with self._trail.change("queue_resumed", name, **_facts(reason)) as change:
            queue = stored_name(name, known, states)
            self._check_lane(queue, known, states)
            changed = await self._store.change(queue, None)
            change.facts["was"] = _word(changed.before)
            return changed

    async def _set(self, name: str, condition: QueueCondition, reason: str) -> StateChange:
        known, states = await self._known(), await self._store.read()
        async with self._trail.change(_KINDS[condition], name, **_facts(reason)) as change:
            queue = stored_name(name, known, states)
            who = self._by.user_id or self._by.by
            state = QueueState(state=condition, since=await self._now(), by=bounded(who), reason=bounded(reason))
            changed = await self._store.change(queue, state)
            change.facts["was"] = _word(changed.before)
            return changed

    async def _known(self) -> KnownModules:
        known = KnownModules(self._settings)
        known.take((await self._directory.read()).entries)
        return known

    @staticmethod
    def _check_lane(queue: str, known: KnownModules, states: QueueStates) -> None:
        """Refuse to resume a queue that has no state but its lane's: it would change nothing."""
        if queue in states.stored or queue.startswith(LANE_PREFIX):
            return
        lane = lane_name(lane_of(queue, known.settings))
        if (held := states.stored.get(lane)) is not None:
            raise OperationRefused(f"The queue of {queue!r} is {held.state} with its whole lane: resume {lane!r}.")


def _facts(reason: str) -> dict[str, str]:
    return {"why": reason} if reason else {}


def _word(before: QueueState | None) -> str:
    return "open" if before is None else before.state


@dataclass(frozen=True, slots=True)
class HandledWakes:
    """The result of one step over a filter. `passed`: those that are due already, or that another operator has handled.

    `under_way`: those that were dropped during an attempt, and may still be accepted. `next`: where the next step
    continues; `None`: nothing is left. `problems`: a sentence for each that cannot be tried.
    """

    done: int = 0
    passed: int = 0
    under_way: int = 0
    next: str | None = None
    problems: tuple[str, ...] = ()


class WakeupChanges:
    """Operators' changes of waiting wake-ups. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, dead: DeadEntries, trail: ChangeTrail, by: Actor) -> None:
        self.dead = dead
        self._kept: KeptWakes = dead.events
        self._trail = trail
        self._by = f"{by.user_id or '-'} ({by.by})"

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, by: Actor) -> AsyncGenerator[Self]:
        """Open the changes for the fleet of these settings. Raises `SettingsError` if they name none."""
        async with DeadEntries.of(settings) as dead, ChangeTrail.of(settings, by) as trail:
            yield cls(dead, trail, by)

    async def replay(self, wake_id: str) -> bool:
        """Have one that waits, or is dead, tried now. Returns whether it was there. Raises `NotReplayable`."""
        async with self._trail.change("wakeup_replayed", wake_id) as change:
            was_there = await self._kept.replay(wake_id)
            change.refusal = None if was_there else _ABSENT
        return was_there

    async def drop(self, wake_id: str) -> Literal["dropped", "under_way"] | None:
        """Forget one that waits; `None`: none of this id does. `under_way`: it is tried just now, and may still be accepted."""
        async with self._trail.change("wakeup_dropped", wake_id) as change:
            became = await self._kept.drop_waiting(wake_id, self._by)
            change.refusal = _ABSENT if became is None else None
            if became == "under_way":
                change.facts["under_way"] = 1
        return became

    async def replay_found(
        self, wanted: WantedWakes, *, behind: str | None = None, limit: int = MOST_AT_ONCE
    ) -> HandledWakes:
        """Try at most `limit` matching wake-ups now, of those that waited when the first step began; raises `ValueError` for an invalid mark."""

        async def replay(wake: KeptWake, so_far: HandledWakes) -> HandledWakes:
            if (
                wake.due_at is not None and wake.due_at <= fleet_clock.now()
            ):  # put behind the mark, it would be met again
                return replace(so_far, passed=so_far.passed + 1)
            try:
                was_there = await self._kept.replay(wake.wake_id)
            except NotReplayable as exc:  # it has died just now
                return replace(so_far, problems=(*so_far.problems, str(exc)))
            return replace(so_far, done=so_far.done + was_there, passed=so_far.passed + (not was_there))

        return await self._each_of("wakeups_replayed", wanted, replay, behind, limit)

    async def drop_found(
        self, wanted: WantedWakes, *, behind: str | None = None, limit: int = MOST_AT_ONCE
    ) -> HandledWakes:
        """Forget at most `limit` matching wake-ups, of those that waited when the first step began; raises `ValueError` for an invalid mark."""

        async def drop(wake: KeptWake, so_far: HandledWakes) -> HandledWakes:
            became = await self._kept.drop_waiting(wake.wake_id, self._by)
            return replace(
                so_far,
                done=so_far.done + (became is not None),
                passed=so_far.passed + (became is None),
                under_way=so_far.under_way + (became == "under_way"),
            )

        return await self._each_of("wakeups_dropped", wanted, drop, behind, limit)

    async def _each_of(
        self,
        kind: ChangeKind,
        wanted: WantedWakes,
        handle: Callable[[KeptWake, HandledWakes], Awaitable[HandledWakes]],
        behind: str | None,
        limit: int,
    ) -> HandledWakes:
        wanted = replace(wanted, until=min(wanted.until, fleet_clock.now()))
        found = await search_waiting(self._kept, wanted, behind=behind, limit=limit)
        handled = HandledWakes(next=found.next)
        if not found.wakes:  # nothing is changed, and no entry is needed
            return handled
        async with self._trail.change(kind, wanted.kind or "all", **wanted.words) as change:
            for wake in found.wakes:
                handled = await handle(wake, handled)
                change.facts["count"] = handled.done  # also where Redis goes away in the middle
        return handled
