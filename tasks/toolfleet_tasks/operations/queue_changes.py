"""Pauses, drains and resumes queues, for an operator; each change has its line in the audit."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, Self

from redis.asyncio import Redis

from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import fleet_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.change_trail import Actor, ChangeKind, ChangeTrail
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

LONGEST_REASON: Final = 256
"""Characters of a reason: it goes into the audit."""

_KINDS: Final[dict[str, ChangeKind]] = {"paused": "queue_paused", "draining": "queue_drained"}


class QueueChanges:
    """Operators' changes of queues.

    Each is named by its module (`crm`), by itself (`tools.crm`), or by its lane (`lane:slow`), which is all of them.

    Raises `NoSuchQueue` and `OperationRefused`, and `FleetUnavailable` when Redis does not answer within 5 s.
    """

    def __init__(self, redis: Redis, settings: Settings, by: Actor) -> None:
        self._redis = redis
        self._settings = settings
        self._by = by
        self._trail = ChangeTrail(redis, settings, by)
        self._store = QueueStateStore(redis, settings)

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, *, by: Actor | None = None) -> AsyncGenerator[Self]:
        """Open the changes for the fleet of these settings. Raises `SettingsError` if they name none.

        `by`: the author in the audit; `None`: this machine's user.
        """
        async with async_client(fleet_url(settings.redis_url), master=settings.sentinel_master) as redis:
            yield cls(redis, settings, by or Actor.at_command_line())

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
            state = QueueState(state=condition, since=await self._store.now(), by=_cut(who), reason=_cut(reason))
            changed = await self._store.change(queue, state)
            change.facts["was"] = _word(changed.before)
            return changed

    async def _known(self) -> KnownModules:
        known = KnownModules(self._settings)
        known.take((await ModuleDirectory(self._redis, self._settings).read()).entries)
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


def _cut(text: str) -> str:
    """Return the text with a bounded length, and with "?" for lone surrogates."""
    return text[:LONGEST_REASON].encode("utf-8", "replace").decode()


def _word(before: QueueState | None) -> str:
    return "open" if before is None else before.state
