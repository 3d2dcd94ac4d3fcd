"""Reads a user's wake-ups of a conversation and leaves them there, until the user confirms each.

Wake-ups are entries of a stream (`id`: the wake's, `body`: JSON) for each user of a conversation, with all readers in
one consumer group. Older processes write all users' to one stream. A reader has at most one entry at a time: its other
pending entries are those that it was given and never received, or that it left behind when it died. A read entry is
removed.

Of entries that were trimmed before they were read, their number is kept, and the first entry that was left: `<number>
<id>`.

Readers in Python take theirs from the same stream (`service.py`): what one of the two is done with, the other does not get. What
older processes have written for all users of the conversation is put into the user's stream when it is read.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from redis.exceptions import ResponseError

from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import is_wanted
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost, answered, run
from toolfleet_tasks.scripts import script
from toolfleet_tasks.wakeups.events import outcome_line

TAKE = script("wakeups/take")
"""Returns [1, stream, entry id, fields], or [2, key, value] for entries that were trimmed, or [0, streams, the ids after which there will
be more in them]."""

KEEP = script("wakeups/keep")
"""Returns 0 if others have the entry, or nobody."""

DONE, LEAVE = script("wakeups/read"), script("wakeups/leave")

REPORTED = script("wakeups/reported")
"""Returns 1 if it was not reported before, and nothing was trimmed since."""

CARRY = script("wakeups/carry")
"""Returns 1 if the entry was there."""


_Fields: TypeAlias = tuple[str, dict[bytes, bytes]]
Entry: TypeAlias = tuple[str, WakeUp | int]
"""A wake-up, and its id in the conversation; or how many were trimmed before they were read, and the id that confirms this."""

COMPLETIONS_KEPT_SECONDS: Final = 7 * 86_400
"""How long wake-ups wait for an agent without HTTP, from the last one on: as long as their jobs can be looked at."""

GROUP: Final = "readers"
"""Those who take entries from the stream."""

log = get_logger(__name__)

_PAGE = 100  # entries at once, of about a thousand that are kept
_EVERY_SECONDS = 0.5  # between two questions: a thousand readers that wait are nothing to Redis
_MOST_IN_A_MOMENT = 10**18  # entries of one millisecond
_ENTRY_ID = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})", re.ASCII)


class CompletionInbox:
    """The wake-ups of one user's ended jobs in a conversation; others' are not shown, and cannot be confirmed.

    `check_core` is called while there is nothing to read.
    """

    def __init__(
        self,
        keys: Keys,
        conversation_id: str,
        user_id: str | None,
        *,
        seal: Seal,
        connection: PipelinedConnection,
        check_core: Callable[[], Awaitable[None]],
    ) -> None:
        self._old = keys.completions(conversation_id)
        self._stream = keys.completions_of(conversation_id, user_id)
        self._lost_key = keys.completions_lost(conversation_id) + self._stream.removeprefix(self._old)
        self._job_key = keys.job
        self._conversation_id = conversation_id
        self._user_id = user_id
        self._seal = seal
        self._connection = connection
        self._check_core = check_core

    async def follow(self) -> AsyncGenerator[Entry]:
        """All that are not confirmed, in order, and then those that come, for ever, also over losses of Redis. Ends when the fleet is left."""
        after = carried = "0-0"
        reported: _Lost | None = None
        while is_wanted():
            page, lost = list[_Fields](), reported
            try:
                carried = await self._carry(carried)
                page, lost = await asyncio.gather(self._read(self._stream, f"({after}", "+"), self._lost())
            except RedisConnectionLost:  # for good: the fleet was left
                return
            except ResponseError as exc:
                log.warning("completions_not_read", error=str(exc))
            if lost is not None and lost != reported and _order(lost.last) > _order(after):
                yield lost.last, lost.count - (0 if reported is None or reported.count > lost.count else reported.count)
            reported = lost
            if not page:
                await self._check_core()
                await asyncio.sleep(_EVERY_SECONDS)
            for entry_id, fields in page:
                after = entry_id
                if (wake := self._own(fields)) is not None:
                    yield entry_id, wake

    async def confirm(self, entry_id: str) -> bool:
        """Have one not shown again. Returns whether it was there. Raises `FleetUnavailable` after 5 s without an answer."""
        return await answered(self._confirm_one(entry_id))

    async def confirm_up_to(self, entry_id: str) -> int:
        """Confirm that one as `confirm` does, and all before it. Returns how many there were.

        An id later than all entries was never returned, or Redis has lost it: then nothing is confirmed.
        """
        return await answered(self._confirm_handed_out(entry_id))

    async def _confirm_handed_out(self, entry_id: str) -> int:
        """Confirm an entry.

        The ids of the two streams are not comparable: an id confirms entries of its own stream, or else they come
        again.
        """
        newest: Any
        newest, is_old, here, there = await asyncio.gather(
            self._connection.execute("XREVRANGE", self._stream, "+", "-", "COUNT", 1),
            self._connection.execute("EXISTS", self._old),
            self._read(self._stream, entry_id, entry_id),
            self._read(self._old, entry_id, entry_id),
        )
        if any(self._own(fields) is not None for _, fields in there):
            return (
                0 if here else await self._confirm(self._old, "-", entry_id)
            )  # in both: of which it is cannot be told
        is_handed_out = bool(here or not is_old) and bool(newest) and _order(entry_id) <= _order(newest[0][0].decode())
        await self._note_reported(entry_id, is_behind=is_handed_out)
        return await self._confirm(self._stream, "-", entry_id) if is_handed_out else 0

    async def _confirm_one(self, entry_id: str) -> bool:
        """Confirm the entry of an id. Of one that is in both streams its reader has seen one, and which cannot be told: both come again."""
        streams = (self._stream, self._old)
        here, there = [await self._read(stream, entry_id, entry_id) for stream in streams]
        if here and any(self._own(fields) is not None for _, fields in there):
            return False
        confirmed = sum([await self._confirm(stream, entry_id, entry_id) for stream in streams])
        return await self._note_reported(entry_id, is_behind=confirmed > 0) or confirmed > 0

    async def _note_reported(self, entry_id: str, *, is_behind: bool) -> bool:
        """Have what was lost not told again if this id confirms it, or `is_behind` it: its reader has heard of that before."""
        lost = await self._lost()
        if lost is None or not (entry_id == lost.last or (is_behind and _order(entry_id) > _order(lost.last))):
            return False
        return bool(await run(self._connection, REPORTED, REPORTED.parameters(lost=self._lost_key, said=lost.said)))

    async def _lost(self) -> "_Lost | None":
        found: Any = await self._connection.execute("GET", self._lost_key)
        return None if found is None else _Lost.read(found)

    async def _carry(self, behind: str) -> str:
        """Put this user's entries into their own stream. Returns up to where those of all users have been looked at."""
        while page := await self._read(self._old, f"({behind}", "+"):
            for behind, fields in page:  # noqa: PLR1704 - it is the last one that was looked at
                if self._own(fields) is not None:
                    names = {"old": self._old, "stream": self._stream}
                    parameters = CARRY.parameters(**names, entry_id=behind, seconds=COMPLETIONS_KEPT_SECONDS)
                    await run(self._connection, CARRY, parameters)
        return behind

    async def _confirm(self, stream: str, first: str, last: str) -> int:
        confirmed = 0
        while page := await self._read(stream, first, last):
            own = [(entry_id, wake) for entry_id, fields in page if (wake := self._own(fields)) is not None]
            done = [self._done(stream, entry_id, wake) for entry_id, wake in own]
            confirmed += sum(await asyncio.gather(*done))
            first = f"({page[-1][0]}"
            if len(page) < _PAGE:
                break
        return confirmed

    async def _done(self, stream: str, entry_id: str, wake: WakeUp) -> int:
        outcome = outcome_line(wake.wake_id, "read", self._user_id or "user")
        names = {"stream": stream, "job": self._job_key(wake.job_id)}
        parameters = DONE.parameters(**names, group=GROUP, entry_id=entry_id, outcome=outcome)
        return int(cast("int", await run(self._connection, DONE, parameters)))

    async def _read(self, stream: str, first: str, last: str) -> list[_Fields]:
        found: Any = await self._connection.execute("XRANGE", stream, first, last, "COUNT", _PAGE)
        return [
            (entry_id.decode(), dict(zip(fields[::2], fields[1::2], strict=False))) for entry_id, fields in found or ()
        ]

    def _own(self, fields: dict[bytes, bytes]) -> WakeUp | None:
        """The wake-up, if the fleet has written it, for this conversation and this user."""
        try:
            wake = json_text.load(WakeUp, self._seal.read(fields.get(b"body", b"").decode()))
        except (MessageRefused, ValueError):
            return None
        is_own = wake.conversation_id == self._conversation_id and wake.user_id == self._user_id
        return wake if is_own else None


@dataclass(frozen=True, slots=True)
class _Lost:
    """The number of trimmed entries, as it is stored, and the last id that one of them can have had."""

    said: bytes
    count: int
    last: str

    @classmethod
    def read(cls, said: bytes) -> "_Lost":
        count, _, first = said.decode().partition(" ")
        moment, number = _order(first)
        return cls(said, int(count), f"{moment}-{number - 1}" if number else f"{moment - 1}-{_MOST_IN_A_MOMENT}")


def is_entry_id(text: str) -> bool:
    """Return whether a text may be the id of an entry."""
    return _ENTRY_ID.fullmatch(text) is not None and all(int(part) < 2**64 for part in text.split("-"))


def _order(entry_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry_id.split("-"))
