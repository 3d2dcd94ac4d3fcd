"""Reads the dead letters of calls, and replays one once at a time."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from redis.asyncio import Redis

from toolfleet_registry.contracts.dead_letters import DeadAttempt, DeadLetter
from toolfleet_registry.errors import MessageRefused, NoSuchDeadLetter
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.dead_letters.store import SETTLE, TAKE, DeadEntry, DeadKind, DeadStore, Letter
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import Seal

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
        """The letter as those of other kinds are shown."""
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
