"""Reads which versions of messages the live workers of a lane speak, out of the notes of their slots.

A note is `<slots> <worker>`, and from version 2 on `<slots> <worker> v<version>`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.lua.constants import SLOTS_COUNT_SECONDS
from toolfleet_tasks.lua.files import script
from toolfleet_tasks.messages import json_text

_LIVE = script("presence/live")
_FIRST = 1  # the version whose workers do not say theirs
KEEPS_ROLLBACKS = 2
"""The first version whose workers leave a tool that was rolled back as it is when they ask its module."""


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
    async with async_client(settings.redis_url, master=settings.sentinel_master) as redis:
        parameters = _LIVE.parameters(slots=settings.keys.slots(lane), seconds=SLOTS_COUNT_SECONDS)
        return read_notes(await redis.eval(_LIVE.text, *parameters))


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
