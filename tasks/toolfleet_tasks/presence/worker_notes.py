"""Writes and reads the note of each live worker in its lane: how many calls it runs at once, and which messages it reads.

A note is `<slots> <worker>`, and from version 2 on `<slots> <worker> v<version>`.

The note of a worker that wakes a core has ` core` appended, and of one that signs its reports about calls ` signs`. The
notes are at the Redis of the results, with any broker. Without them agents use the setting of workers.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from redis.exceptions import RedisError

from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.lua.constants import SLOTS_COUNT_SECONDS
from toolfleet_tasks.lua.files import script
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.results.verifier import SIGNS
from toolfleet_tasks.wakeups.core_watch import WAKES_CORE

log = get_logger(__name__)

_FIRST = 1  # the version whose workers do not say theirs

KEEPS_ROLLBACKS = 2
"""The first version whose workers leave a tool that was rolled back as it is when they ask its module."""

_BEAT_SECONDS = 5.0
_NOTE = script("presence/note_slots")


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that lives, by its host and process id, and the newest version of messages that it reads."""

    name: str
    version: int


def note_of(count: int, worker: str) -> str:
    """The note of this version's worker with so many slots."""
    return f"{count} {worker} v{json_text.VERSION}"


def read_notes(notes: Iterable[bytes]) -> tuple[LiveWorker, ...]:
    """Return the workers of these notes, sorted by name; invalid notes are left out."""
    found = (note.decode(errors="replace").split() for note in notes)
    return tuple(sorted({LiveWorker(words[1], _version(words[2:])) for words in found if len(words) > 1}, key=_by_name))


async def live_workers(settings: Settings, lane: Literal["fast", "slow"]) -> tuple[LiveWorker, ...]:
    """The live workers of a lane. Raises redis-py's errors; none are known of without `redis_url`."""
    if settings.redis_url is None:
        return ()
    async with (
        async_client(settings.redis_url, master=settings.sentinel_master) as redis,
        redis.pipeline(transaction=False) as commands,
    ):
        commands.time()
        commands.zrange(settings.keys.slots(lane), 0, -1, withscores=True)
        (now, _), notes = await commands.execute()
    return read_notes(note for note, noted_at in notes if noted_at >= now - SLOTS_COUNT_SECONDS)


async def older_workers(settings: Settings, version: int) -> tuple[str, ...]:
    """Return the names of the live workers, of any lane, that cannot read messages of a version.

    Raises redis-py's errors.
    """
    found = [*await live_workers(settings, "fast"), *await live_workers(settings, "slow")]
    return tuple(sorted({worker.name for worker in found if worker.version < version}))


def mixed_versions(workers: Iterable[LiveWorker]) -> str:
    """Describe which versions run together, and on which workers; "" if all have the same."""
    by_version = dict[int, list[str]]()
    for worker in workers:
        by_version.setdefault(worker.version, []).append(worker.name)
    if len(by_version) < 2:  # noqa: PLR2004 - else they are mixed
        return ""
    return "; ".join(f"version {version}: {', '.join(names)}" for version, names in sorted(by_version.items()))


def _version(words: list[str]) -> int:
    number = words[0].removeprefix("v") if words else ""
    return int(number) if number.isdigit() else _FIRST


def _by_name(worker: LiveWorker) -> tuple[str, int]:
    return worker.name, worker.version


class LaneCapacity:
    """One worker's note, in its lane, or in both if it serves all. Without `redis_url` there is nothing to note."""

    def __init__(self, settings: Settings, *, count: int) -> None:
        self._settings = settings
        lanes = ("fast", "slow") if settings.lane == "all" else (settings.lane,)
        self._names = [settings.keys.slots(lane) for lane in lanes]
        core, signs = "" if settings.core_url is None else WAKES_CORE, "" if settings.signing_key is None else SIGNS
        self._note = note_of(count, this_process().name) + core + signs
        self._mixed = ""  # as it was last logged

    async def keep(self) -> None:
        """Note it now, and again and again until cancelled. Raises nothing while Redis is away."""
        while self._settings.redis_url is not None:
            try:
                await self.note()
            except (RedisError, OSError) as exc:
                log.warning("slots_not_noted", error=str(exc))
            await asyncio.sleep(_BEAT_SECONDS)

    async def note(self) -> None:
        """Note it once, and log it when workers of other versions have come to its lanes, or gone. Raises redis-py's errors."""
        url, master = str(self._settings.redis_url), self._settings.sentinel_master
        async with async_client(url, master=master) as redis:
            parameters = _NOTE.parameters_of(self._names, note=self._note, seconds=SLOTS_COUNT_SECONDS)
            notes = await redis.eval(_NOTE.text, *parameters)
        mixed = mixed_versions(read_notes(notes))
        if mixed != self._mixed:
            log.warning("workers_of_mixed_versions", workers=mixed or "no more")
            self._mixed = mixed

    async def leave(self) -> None:
        """The worker ends, and its slots with it. Raises nothing."""
        if self._settings.redis_url is None:
            return
        url, master = self._settings.redis_url, self._settings.sentinel_master
        with contextlib.suppress(RedisError, OSError):  # the note counts for some seconds only
            async with async_client(url, master=master, timeout_seconds=1) as redis, redis.pipeline() as commands:
                for name in self._names:
                    commands.zrem(name, self._note)
                await commands.execute()
