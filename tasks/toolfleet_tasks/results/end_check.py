"""Checks the ends of calls that are announced: one that the fleet has not signed is dropped, and the ledger asked instead."""

import asyncio
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.results.reader import ResultReader
from toolfleet_tasks.results.verifier import Verdict, Verifier, signed_part, stored_meta

FORGED = "ForgedResult"
"""In the place of an exception's name: the call has ended, and what is stored of it is not what the fleet has signed."""

_PAUSE_SECONDS = 0.5  # between two lookups for one call, with any announcements meanwhile

log = get_logger(__name__)

Meta = dict[str, Any]
"""What Celery stores of a task: status, result, traceback and more."""


class EndCheck:
    """Checks the ends of one agent's calls.

    `ended(channel, meta)` is called with an end that the ledger has, or with `FORGED`.

    A call whose end is not in the ledger continues: nothing is called, and its next announcement is judged by itself.
    """

    def __init__(
        self, verifier: Verifier, reader: ResultReader, *, keys: Keys, ended: Callable[[bytes, Meta], None]
    ) -> None:
        self._verifier = verifier
        self._reader = reader
        self._keys = keys
        self._ended = ended
        self._prefix = len(keys.result(""))
        self._checking: dict[bytes, asyncio.Task[None]] = {}  # by channel
        self._dropped: dict[bytes, int] = {}  # what was last, by channel: a sweep finds it again and again

    async def aclose(self) -> None:
        """Look no more."""
        await end(list(self._checking.values()))

    def passes(self, channel: bytes, meta: Meta) -> bool:
        """Return whether this end is genuine. If not, it is counted and logged, once, and the ledger is asked."""
        call_id = channel[self._prefix :].decode(errors="replace")
        verdict = self._verifier.judge_end(call_id, meta)
        if verdict == "believed":
            self._dropped.pop(channel, None)
            return True
        if verdict == "refused":
            self._drop(channel, call_id, meta)
        if channel not in self._checking:
            checking = self._check(channel, call_id, meta, is_unsure=verdict == "unsure")
            task = self._checking[channel] = asyncio.get_running_loop().create_task(
                checking, name="toolfleet-end-check"
            )
            task.add_done_callback(lambda _: self._checking.pop(channel, None))
        return False

    def forget(self, channel: bytes) -> None:
        """Forget a call without waiters."""
        self._dropped.pop(channel, None)
        if (task := self._checking.get(channel)) is not None:
            task.cancel()

    def _drop(self, channel: bytes, call_id: str, meta: Meta) -> None:
        subject, text = signed_part(meta)
        mark = hash((text, str(meta.get("signature"))))
        if self._dropped.get(channel) != mark:
            self._dropped[channel] = mark
            self._verifier.refuse(call_id, subject, is_signed=meta.get("signature") is not None)

    async def _check(self, channel: bytes, call_id: str, meta: Meta, *, is_unsure: bool) -> None:
        verdict: Verdict = await self._verdict(call_id, meta) if is_unsure else "refused"
        if verdict == "believed":
            self._ended(channel, meta)
            return
        if is_unsure and verdict == "refused":
            self._drop(channel, call_id, meta)
        if (end := await self._stored(channel, call_id)) is not None:
            self._ended(channel, end)
        await asyncio.sleep(_PAUSE_SECONDS)

    async def _stored(self, channel: bytes, call_id: str) -> Meta | None:
        """Return the end that the ledger has; `None` without one, and if it cannot be judged: the next sweep finds it again."""
        try:
            stored = await self._reader.end_of(self._keys.call(call_id), channel)
        except (OSError, ResponseError) as exc:
            log.warning("ledger_not_asked", call_id=call_id, error=str(exc) or "no answer in time")
            return None
        if stored is None:
            return None
        found = stored_meta(stored)
        match await self._verdict(call_id, found):
            case "believed":
                return found
            case "refused":
                return {"status": "FAILURE", "result": {"exc_type": FORGED}}
            case "unsure":
                return None

    async def _verdict(self, call_id: str, meta: Meta) -> Verdict:
        """Judge an end; `unsure` if Redis does not say which workers are running."""
        verdict = self._verifier.judge_end(call_id, meta)
        if verdict == "unsure":
            await self._verifier.check_workers()
            verdict = self._verifier.judge_end(call_id, meta)
        return verdict
