"""Keeps a copy of agents' profiles in the fleet's Redis where the registry is elsewhere: agents and workers read nothing else."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from redis.asyncio import Redis

from toolfleet_registry.agents.stored_profiles import StoredProfiles, profile_names
from toolfleet_registry.documents.redis import copying
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.documents import NOTHING_KEPT, Documents

T = TypeVar("T")

_PATIENCE_SECONDS = 5
_TRIES = 5  # while others make it, too


def is_elsewhere(settings: Settings) -> bool:
    """Return whether profiles are not in the fleet's own Redis, so that agents and workers read a copy."""
    return settings.registry_url not in {None, settings.redis_url}


class ProfileCopy:
    """The copy of the registry's profiles in Redis, of one process.

    Raises `FleetUnavailable` when Redis or the registry does not answer; the next renewal repairs it.
    """

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis, self._settings, self._names = redis, settings, profile_names(settings.keys)

    @property
    def is_needed(self) -> bool:
        """Whether there is periodic work: copying, or signing again with the new key."""
        return is_elsewhere(self._settings) or bool(self._settings.signing_keys_old)

    async def renew(self) -> None:
        """Bring the copy up to date with the registry, also after Redis lost it.

        A registry that never had a change is skipped.
        """
        for _ in range(_TRIES if is_elsewhere(self._settings) else 0):
            # Before the registry is read: what changes meanwhile is written by others.
            revision, count = await self._there()
            found = await self._asked(StoredProfiles.texts)
            assert found is not None
            if found.revision == NOTHING_KEPT or (found.revision, len(found.entries)) == (revision, count):
                return
            if await self._write(revision, found):
                return

    async def sign_again(self) -> None:
        """Have profiles signed with the fleet's key that were signed with an old one of it."""
        if self._settings.signing_keys_old:
            await self._asked(StoredProfiles.sign_again)

    async def _there(self) -> tuple[str, int]:
        async with answering(self._redis, seconds=_PATIENCE_SECONDS), self._redis.pipeline(transaction=True) as pipe:
            pipe.get(self._names.revision)
            pipe.hlen(self._names.entries)
            revision, count = await pipe.execute()
        return revision.decode(errors="replace") if isinstance(revision, bytes) else revision or "", count

    async def _write(self, expected: str, found: Documents) -> bool:
        command = copying(self._names, found, expected=expected)
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            return bool(await cast("Awaitable[int]", self._redis.execute_command(*command)))

    async def _asked(self, question: Callable[[StoredProfiles], T]) -> T:
        """Ask the store in a thread: it is synchronous, and limits the time of each answer itself."""

        def ask() -> T:
            with contextlib.closing(StoredProfiles.of(self._settings)) as profiles:
                return question(profiles)

        return await asyncio.to_thread(ask)
