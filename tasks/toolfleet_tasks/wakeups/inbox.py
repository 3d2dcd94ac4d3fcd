"""Reads a user's wake-ups of a conversation and leaves them there, until the user confirms each: for readers that come and go.

Readers in Python take theirs from the same stream (`stream.py`): what one of the two is done with, the other does not get.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, cast

from redis.exceptions import ResponseError

from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.cancellation import is_wanted
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.redis.answers import answered
from toolfleet_tasks.redis.connection import PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.redis.script_runner import run
from toolfleet_tasks.wakeups.outcomes import outcome_line
from toolfleet_tasks.wakeups.stream_scripts import DONE

Entry: TypeAlias = tuple[str, WakeUp]
"""A wake-up, and its id in the conversation."""

GROUP: Final = "readers"
"""Those who take entries from the stream."""

log = get_logger(__name__)

_PAGE = 100  # entries at once, of about a thousand that are kept
_EVERY_SECONDS = 0.5  # between two questions: a thousand readers that wait are nothing to Redis
_ENTRY_ID = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})", re.ASCII)


class CompletionInbox:
    """Those of one user, whose jobs have ended; others' are not shown, and cannot be confirmed.

    `check_core` is called while there is nothing to read. `job_key` names a job's record, which keeps that its wake-up was read.
    """

    def __init__(  # noqa: PLR0913 - what it needs of its session
        self,
        stream: str,
        conversation_id: str,
        user_id: str | None,
        *,
        seal: Seal,
        connection: PipelinedConnection,
        check_core: Callable[[], Awaitable[None]],
        job_key: Callable[[str], str],
    ) -> None:
        self._stream = stream
        self._job_key = job_key
        self._conversation_id = conversation_id
        self._user_id = user_id
        self._seal = seal
        self._connection = connection
        self._check_core = check_core

    async def follow(self) -> AsyncGenerator[Entry]:
        """All that are not confirmed, in order, and then those that come, for ever, also over losses of Redis. Ends when the fleet is left."""
        after = "0-0"
        while is_wanted():
            try:
                page = await self._page(after)
            except RedisConnectionLost:  # for good: the fleet was left
                return
            except ResponseError as exc:
                log.warning("completions_not_read", error=str(exc))
                page = ()
            if not page:
                await self._check_core()
                await asyncio.sleep(_EVERY_SECONDS)
            for entry_id, fields in page:
                after = entry_id
                if (wake := self._own(fields)) is not None:
                    yield entry_id, wake

    async def confirm(self, entry_id: str) -> bool:
        """Have one not shown again. Returns whether it was there. Raises `FleetUnavailable` after 5 s without an answer."""
        return await answered(self._confirm(entry_id, entry_id)) > 0

    async def confirm_up_to(self, entry_id: str) -> int:
        """As `confirm`, that one and all before it. Returns how many there were.

        One that comes later than all that there are was never handed out, or Redis has lost it: then nothing is confirmed.
        """
        return await answered(self._confirm_handed_out(entry_id))

    async def _confirm_handed_out(self, entry_id: str) -> int:
        newest: Any = await self._connection.execute("XREVRANGE", self._stream, "+", "-", "COUNT", 1)
        if not newest or _order(entry_id) > _order(newest[0][0].decode()):
            return 0
        return await self._confirm("-", entry_id)

    async def _confirm(self, first: str, last: str) -> int:
        confirmed = 0
        while page := await self._read(first, last):
            own = [(entry_id, wake) for entry_id, fields in page if (wake := self._own(fields)) is not None]
            done = [self._done(entry_id, wake) for entry_id, wake in own]
            confirmed += sum(await asyncio.gather(*done))
            first = f"({page[-1][0]}"
            if len(page) < _PAGE:
                break
        return confirmed

    async def _done(self, entry_id: str, wake: WakeUp) -> int:
        outcome = outcome_line(wake.wake_id, "read", self._user_id or "user")
        names = {"stream": self._stream, "job": self._job_key(wake.job_id)}
        parameters = DONE.parameters(**names, group=GROUP, entry_id=entry_id, outcome=outcome)
        return int(cast("int", await run(self._connection, DONE, parameters)))

    async def _page(self, after: str) -> Sequence[tuple[str, dict[bytes, bytes]]]:
        return await self._read(f"({after}", "+")

    async def _read(self, first: str, last: str) -> Sequence[tuple[str, dict[bytes, bytes]]]:
        found: Any = await self._connection.execute("XRANGE", self._stream, first, last, "COUNT", _PAGE)
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


def is_entry_id(text: str) -> bool:
    """Whether a text may be the id of an entry."""
    return _ENTRY_ID.fullmatch(text) is not None and all(int(part) < 2**64 for part in text.split("-"))


def _order(entry_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry_id.split("-"))
