"""Shows dead letters of all kinds together, and drops them."""

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Self

from redis.asyncio import Redis

from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import fleet_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.dead_letters.call_letters import DeadLetters
from toolfleet_tasks.dead_letters.kept_wakes import KeptWakes
from toolfleet_tasks.dead_letters.store import (
    KINDS,
    DeadEntry,
    DeadKind,
    DeadStore,
    FoundLetters,
    Letter,
    WantedLetters,
    search_letters,
)
from toolfleet_tasks.messages.signing import seal_of


class DeadEntries:
    """The dead letters of a fleet. Each method raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._store = DeadStore(redis, settings.keys)
        self.calls = DeadLetters(
            redis, settings.keys, signing_key=settings.signing_key, old_keys=settings.signing_keys_old
        )
        self.events = KeptWakes(self._store, settings.keys, seal_of(settings, purpose="job"))

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings) -> AsyncGenerator[Self]:
        """Open the dead letters of the fleet of these settings. Raises `SettingsError` if they name none."""
        async with async_client(fleet_url(settings.redis_url), master=settings.sentinel_master) as redis:
            yield cls(redis, settings)

    async def list(self, kinds: Collection[DeadKind] = KINDS, limit: int = 50, offset: int = 0) -> Sequence[DeadEntry]:
        """Return at most `limit` letters of these kinds, of 1,000 at most, after the first `offset`; the latest first."""
        return [self._entry(letter) for letter in await self._store.list(kinds, limit, offset)]

    async def search(self, wanted: WantedLetters, *, behind: str | None = None, limit: int = 50) -> FoundLetters:
        """Return at most `limit` matching letters behind the mark `behind`; searches some thousand at most.

        Raises `ValueError` for an invalid mark.
        """
        return await search_letters(self._store, self._entry, wanted, behind=behind, limit=limit)

    async def find(self, entry_id: str, kinds: Collection[DeadKind] = KINDS) -> Sequence[DeadEntry]:
        """Return the entries with this id, one at most of a kind: a wake-up that is a call, and that call, have the same."""
        return [self._entry(letter) for letter in await self._store.find(kinds, entry_id)]

    async def drop(self, entry_ids: Iterable[str], kinds: Collection[DeadKind] = KINDS) -> tuple[str, ...]:
        """Forget these letters. Returns the ids of those that were there."""
        return await self._store.drop(kinds, entry_ids)

    async def drop_all(self, kinds: Collection[DeadKind] = KINDS) -> int:
        """Forget all letters of these kinds. Returns how many there were."""
        return await self._store.drop_all(kinds)

    def _entry(self, letter: Letter) -> DeadEntry:
        return self.calls.entry(letter) if letter.kind == "call" else self.events.entry(letter)
