"""Decides which reports about a call are genuine: signed ones of the fleet; unsigned ones only while workers run that do not sign.

The workers' notes say which these are (`presence/worker_notes.py`): everybody who can write to Redis can write such a
note as well, so `TOOLFLEET_REQUIRE_SIGNED_RESULTS` should be set as soon as all workers sign. Fails closed.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

from redis.exceptions import ResponseError

from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import machine_clock
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.messages.signatures import Signatures, SignedSubject
from toolfleet_tasks.redis.connection import PipelinedConnection, RedisConnectionLost

SIGNS = " signs"
"""Ends the note of a worker that signs what it tells of calls."""

Verdict = Literal["believed", "refused", "unsure"]
"""`unsure`: it is not signed, and who is at work must be looked up first."""

_CHECK_COUNTS_SECONDS = 5.0
_OLDER_COUNT_SECONDS = 20.0  # what a worker stored before it ended is read a little later; as long as its note counts
_CHECK_PATIENCE_SECONDS = 1.0
_WARN_SECONDS = 60.0  # between two words about results that are not signed
_REFUSED_SECONDS = 1.0  # between two log entries about forgeries: thousands must not fill the log

log = get_logger(__name__)


class Verifier:
    """Judges what comes over one line's Redis, for one process. `connection` is only used for unsigned results."""

    def __init__(self, connection: PipelinedConnection, settings: Settings) -> None:
        self.is_on = settings.signing_key is not None
        self.refused = 0
        """How much was not believed."""
        self.unsigned = 0
        """How much was believed though it was not signed."""
        self._connection = connection
        self._lanes = [settings.keys.slots(lane) for lane in ("fast", "slow")]
        self._signatures = {subject: Signatures(settings, subject) for subject in _SUBJECTS} if self.is_on else {}
        self._is_strict = settings.require_signed_results
        self._checked_at = self._older_at = float("-inf")
        self._said_at = self._warned_at = float("-inf")
        self._checking: asyncio.Task[None] | None = None

    def judge(self, call_id: str, subject: SignedSubject, text: str, signature: object) -> Verdict:
        """Judge whether this is genuine. Costs one hash."""
        if not self.is_on:
            return "believed"
        if signature is not None:
            return "believed" if self._signatures[subject].verify(call_id, text, signature) else "refused"
        now = machine_clock.monotonic()
        if self._is_strict:
            return "refused"
        if now < self._older_at + _OLDER_COUNT_SECONDS:
            self._note_unsigned(now)
            return "believed"
        return "refused" if now < self._checked_at + _CHECK_COUNTS_SECONDS else "unsure"

    def judge_end(self, call_id: str, meta: Mapping[str, Any]) -> Verdict:
        """The same for a call's end as Celery writes it down."""
        if not self.is_on:
            return "believed"
        subject, text = signed_part(meta)
        return self.judge(call_id, subject, text, meta.get("signature"))

    async def check_workers(self) -> None:
        """Look up whether workers run that do not sign.

        Without an answer of Redis that stays unknown, and is looked up again.
        """
        try:
            async with asyncio.timeout(_CHECK_PATIENCE_SECONDS):
                notes = await asyncio.gather(*(self._connection.execute("ZRANGE", lane, 0, -1) for lane in self._lanes))
        except (TimeoutError, RedisConnectionLost, ResponseError) as exc:
            log.warning("older_workers_not_looked_up", error=str(exc) or "no answer in time")
            return
        self._checked_at = machine_clock.monotonic()
        if any(not note.endswith(SIGNS.encode()) for lane in notes for note in lane):
            self._older_at = self._checked_at

    def check_workers_soon(self) -> None:
        """Look it up in the background, for callers that cannot wait."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(
                self.check_workers(), name="toolfleet-older-workers"
            )

    async def aclose(self) -> None:
        """Look no more."""
        if self._checking is not None:
            await end([self._checking])

    async def believes(self, call_id: str, subject: SignedSubject, text: str, signature: object) -> bool:
        """Judge as `judge` does, for callers that can wait for a lookup; a refusal is counted and logged."""
        verdict = self.judge(call_id, subject, text, signature)
        if verdict == "unsure":
            await self.check_workers()
            verdict = self.judge(call_id, subject, text, signature)
        if verdict != "believed":
            self.refuse(call_id, subject, is_signed=signature is not None)
        return verdict == "believed"

    async def believed(self, call_id: str, stored: bytes) -> str:
        """Return a call's stored result; "" if it is not genuine, as if it had expired."""
        found = stored.decode(errors="replace")
        if not found or not self.is_on:
            return found
        meta = stored_meta(found)
        subject, text = signed_part(meta)
        return found if await self.believes(call_id, subject, text, meta.get("signature")) else ""

    def refuse(self, call_id: str, subject: SignedSubject, *, is_signed: bool) -> None:
        """Count a refusal, and log it."""
        self.refused += 1
        now = machine_clock.monotonic()
        if now < self._said_at + _REFUSED_SECONDS:
            return
        self._said_at = now
        reason = "its signature is not the fleet's for this call" if is_signed else "it is not signed"
        log.error("forgery_refused", call_id=call_id, told=subject, reason=reason, so_far=self.refused)

    def _note_unsigned(self, now: float) -> None:
        self.unsigned += 1
        if now >= self._warned_at + _WARN_SECONDS:
            self._warned_at = now
            hint = "Workers are at work that do not sign: upgrade them, then set TOOLFLEET_REQUIRE_SIGNED_RESULTS."
            log.warning("unsigned_believed", so_far=self.unsigned, hint=hint)


def signed_part(meta: Mapping[str, Any]) -> tuple[SignedSubject, str]:
    """Return the signed part of a call's end: a success's text, of any other its status and the name of the exception."""
    result = meta.get("result")
    if meta.get("status") == "SUCCESS":
        return "result", str(result)
    kind = result.get("exc_type") if isinstance(result, dict) else None
    return "failure", f"{meta.get('status')} {kind}"


def stored_meta(stored: str) -> dict[str, Any]:
    """Parse a call's stored end in Celery's form; it is either in that form, or the result's own text."""
    try:
        meta = json.loads(stored)
    except (ValueError, RecursionError):
        meta = None
    return meta if isinstance(meta, dict) and "status" in meta else {"status": "SUCCESS", "result": stored}


_SUBJECTS: tuple[SignedSubject, ...] = get_args(SignedSubject)
