"""Notes what each worker finds of the processes of modules that have several, and adds the workers' notes up for operators.

A worker's note is JSON, `{module: {replica id: [calls in flight, failures to connect, seconds that it is left alone]}}`, at the
Redis of the results. It says something of this worker only: a process that one cannot reach, others may.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.lua.files import script

_BEAT_SECONDS = 2.0
_COUNTS_SECONDS = 10  # a worker that has been silent for so long has died
_FIELDS = 3
_NOTE = script("presence/note")

log = get_logger(__name__)

Counts = Mapping[str, Mapping[str, tuple[int, int, float]]]
"""By module and replica: calls in flight, how often it could not be reached, and for how many seconds it is left alone."""


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """One process as all workers together find it. `ejected_seconds`: the longest of theirs; `workers`: how many know it."""

    in_flight: int = 0
    failures: int = 0
    ejected_seconds: float = 0.0
    workers: int = 0

    def plus(self, in_flight: int, failures: int, seconds: float) -> "ReplicaCount":
        """The same with what one more worker finds."""
        longest = max(self.ejected_seconds, seconds)
        return ReplicaCount(self.in_flight + in_flight, self.failures + failures, longest, self.workers + 1)


class ReplicaCounts:
    """One worker's note; `counts` says what it finds. Without `redis_url` there is nothing to note."""

    def __init__(self, settings: Settings, counts: Callable[[], Counts]) -> None:
        self._settings = settings
        self._counts = counts
        self._worker = this_process().name
        self._is_noted = False

    async def keep(self) -> None:
        """Note it again and again until cancelled, while there is anything. Raises nothing while Redis is away."""
        while self._settings.redis_url is not None:
            try:
                await self.note()
            except (RedisError, OSError) as exc:
                log.warning("replica_counts_not_noted", error=str(exc))
            await asyncio.sleep(_BEAT_SECONDS)

    async def note(self) -> None:
        """Note it once; no round trip where there is nothing, and was nothing. Raises redis-py's errors."""
        counts = self._counts()
        if not counts and not self._is_noted:
            return
        key = self._settings.keys.hosts.counts
        async with async_client(str(self._settings.redis_url), master=self._settings.sentinel_master) as redis:
            if counts:
                text = json.dumps(counts, separators=(",", ":"))
                parameters = _NOTE.parameters(notes=key, worker=self._worker, note=text, seconds=_COUNTS_SECONDS)
                await redis.eval(_NOTE.text, *parameters)
            else:
                await redis.hdel(key, self._worker)
        self._is_noted = bool(counts)


async def replica_counts(settings: Settings) -> dict[str, dict[str, ReplicaCount]]:
    """Return the live workers' findings, by module and replica's id.

    Raises redis-py's errors; empty without `redis_url`.
    """
    if settings.redis_url is None:
        return {}
    async with (
        async_client(settings.redis_url, master=settings.sentinel_master) as redis,
        redis.pipeline(transaction=False) as commands,
    ):
        commands.time()
        commands.hvals(settings.keys.hosts.counts)
        (now, _), notes = await commands.execute()
    read = (note.partition(b" ") for note in notes)
    return added_up(note for at, _, note in read if at.isdigit() and abs(now - int(at)) <= _COUNTS_SECONDS)


def added_up(notes: Iterable[bytes | str]) -> dict[str, dict[str, ReplicaCount]]:
    """Add up workers' notes. Invalid ones are ignored: a later version may write others."""
    found = dict[str, dict[str, ReplicaCount]]()
    for note in notes:
        for module, replicas in _object_in(note).items():
            for id_, numbers in replicas.items() if isinstance(replicas, dict) else ():
                if _are_counts(numbers):
                    of_module = found.setdefault(module, {})
                    of_module[id_] = of_module.get(id_, ReplicaCount()).plus(*numbers[:_FIELDS])
    return found


def _object_in(note: bytes | str) -> dict[str, Any]:
    try:
        read = json.loads(note)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _are_counts(numbers: Any) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) >= _FIELDS
        and all(isinstance(number, int | float) and number >= 0 for number in numbers[:_FIELDS])
    )
