"""Shows dead letters of all kinds together and drops them; reads those of calls, and has each replayed once at a time."""

import math
import re
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

from redis.asyncio import Redis

from toolfleet_registry.contracts.calls import DeadAttempt, DeadLetter
from toolfleet_registry.errors import MessageRefused, NoSuchDeadLetter
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.dead_letters.kept_wakes import KeptWakes
from toolfleet_tasks.dead_letters.store import (
    KINDS,
    SETTLE,
    TAKE,
    DeadEntry,
    DeadKind,
    DeadStore,
    FoundLetters,
    Letter,
    WantedLetters,
    search_letters,
)
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import Seal, seal_of

_CALLS: Final[tuple[DeadKind, ...]] = ("call",)


@dataclass(frozen=True, slots=True)
class UnreadableLetter:
    """An entry under a call's id that is no dead letter: another version's, perhaps. It can only be dropped."""

    call_id: str
    """The call's id."""
    reason: str
    """Why it cannot be read."""


Kept: TypeAlias = DeadLetter | UnreadableLetter


class DeadLetters:
    """The dead letters of calls. All methods raise `FleetUnavailable` when Redis does not answer within 5 s.

    With a signing key, a letter that was not signed with it, or one of the old ones, is unreadable: a planted letter is
    not replayed.
    """

    def __init__(
        self,
        redis: Redis,
        keys: Keys = Keys(),  # noqa: B008 - it is frozen
        *,
        signing_key: str | None = None,
        old_keys: Sequence[str] = (),
    ) -> None:
        self._store = DeadStore(redis, keys)
        self._keys = keys
        self._seal = Seal(signing_key, purpose="dead letter", old_keys=old_keys)

    async def count(self) -> int:
        """Return the number of letters."""
        return await self._store.count(_CALLS)

    async def list(self, limit: int = 50, offset: int = 0) -> list[Kept]:
        """Return at most `limit` letters, of 1,000 at most, after the first `offset`; the latest first."""
        return [self.read(letter.id, letter.value) for letter in await self._store.list(_CALLS, limit, offset)]

    async def show(self, call_id: str) -> Kept:
        """The letter of this call. Raises `NoSuchDeadLetter`."""
        for letter in await self._store.find(_CALLS, call_id):
            return self.read(call_id, letter.value)
        raise NoSuchDeadLetter(call_id)

    async def drop(self, call_ids: Iterable[str]) -> tuple[str, ...]:
        """Forget these letters. Returns the ids of those that were there."""
        return await self._store.drop(_CALLS, call_ids)

    async def drop_all(self) -> int:
        """Forget all letters. Returns how many there were."""
        return await self._store.drop_all(_CALLS)

    async def take(self, call_id: str, *, seconds: float) -> tuple[Kept, int]:
        """Return the letter, to be replayed within so many seconds: `settle` must follow. Raises `NoSuchDeadLetter`.

        Also returns for how many seconds another replay of it may still run: above 0, it must not be replayed now.
        """
        command = TAKE.command(dead=self._keys.dead, call_id=call_id, seconds=math.ceil(seconds))
        found: Sequence[Any] | None = await self._store.ask(*command)
        if found is None or "/" in call_id:
            raise NoSuchDeadLetter(call_id)
        return self.read(call_id, found[0]), int(found[1])

    async def settle(self, call_id: str, *, replay_id: str | None, succeeded: bool) -> bool:
        """A replay has ended: drop the letter if it succeeded, or is a dead letter itself. Returns whether it was dropped."""
        keys = {"dead": self._keys.dead, "dead_order": self._keys.dead_order}
        command = SETTLE.command(**keys, call_id=call_id, replay_id=replay_id or "", succeeded=int(succeeded))
        return bool(await self._store.ask(*command))

    def read(self, call_id: str, value: bytes | None) -> Kept:
        """Return the entry under the call's id, readable or not."""
        try:
            log, _, text = (value or b"").decode().rpartition("\n")
            letter = json_text.load(DeadLetter, self._seal.read(text))
        except MessageRefused as exc:
            return UnreadableLetter(call_id, str(exc))
        except ValueError as exc:
            return UnreadableLetter(call_id, f"It cannot be read ({type(exc).__name__}): {_first_line(exc)}")
        if letter.call_id != call_id:
            return UnreadableLetter(call_id, "It is the letter of another call.")
        return letter.model_copy(update={"attempts": parse_attempts(log)}) if log else letter

    def entry(self, letter: Letter) -> DeadEntry:
        """Return the letter in the form of dead letters of all kinds."""
        found = self.read(letter.id, letter.value)
        if isinstance(found, UnreadableLetter):
            return DeadEntry("call", letter.id, letter.died_at, 0, found.reason, "?", replayable=False)
        user = "" if found.user_id is None else f" for {found.user_id}"
        return DeadEntry(
            kind="call",
            id=found.call_id,
            died_at=found.died_at,
            attempts=len(found.attempts),
            error=f"{found.error_code}: {found.reason}",
            subject=f"{found.tool_name}{user}",
            body=found.model_dump(mode="json"),
            replayable=True,
        )


def parse_attempts(log: str) -> tuple[DeadAttempt, ...]:
    """The ledger's log, `1 not_sent 12;2 never_closed 0;`, with words for names. What cannot be read is left out."""
    return tuple(
        DeadAttempt(
            attempt=int(found["attempt"]),
            outcome=found["outcome"].replace("_", " "),
            ms=None if found["outcome"] == "never_closed" or not found["ms"] else float(found["ms"]),
        )
        for found in _ATTEMPT.finditer(log)
    )


def _first_line(exc: Exception) -> str:
    return str(exc).partition("\n")[0][:_SHOWN]


_ATTEMPT = re.compile(r"(?P<attempt>\d{1,4}) (?P<outcome>\w{1,40})(?: (?P<ms>\d{1,12}(?:\.\d{1,6})?))?;", re.ASCII)
_SHOWN = 200


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
        async with settings.redis_client() as redis:
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
