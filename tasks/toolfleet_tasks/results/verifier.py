"""Reads stored results, and decides which reports and ends of a call are genuine: those that the fleet has signed.

The workers' notes say which these are (`presence.py`): everybody who can write to Redis can write such a
note as well, so `TOOLFLEET_REQUIRE_SIGNED_RESULTS` should be set as soon as all workers sign. Fails closed.

Redis gives up a subscriber that has more than 32 MB to read, as an agent has that was busy while results came. What it
reads of its own accord therefore never goes over the connection on which it listens.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from redis.exceptions import ResponseError

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import end
from toolfleet_tasks.messages.signing import Signatures, SignedSubject
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.scripts import script

log = get_logger(__name__)

FORGED = "ForgedResult"
"""In the place of an exception's name: the call has ended, and what is stored of it is not what the fleet has signed."""

_PAUSE_SECONDS = 0.5  # between two lookups for one call, with any announcements meanwhile

Meta = dict[str, Any]
"""What Celery stores of a task: status, result, traceback and more."""

Verdict = Literal["believed", "refused", "unsure"]
"""`unsure`: it is not signed, and who is at work must be looked up first."""

Found = Callable[[bytes, bytes | None], None]

SIGNS = " signs"
"""Ends the note of a worker that signs what it tells of calls."""

_CHECK_COUNTS_SECONDS = 5.0

_OLDER_COUNT_SECONDS = 20.0  # what a worker stored before it ended is read a little later; as long as its note counts

_CHECK_PATIENCE_SECONDS = 1.0

_WARN_SECONDS = 60.0  # between two words about results that are not signed

_REFUSED_SECONDS = 1.0  # between two log entries about forgeries: thousands must not fill the log

_SUBJECTS: tuple[SignedSubject, ...] = get_args(SignedSubject)

ANNOUNCED_AT_MOST = 256 * 1024
"""Bytes: a result over that is announced as `STORED`, with its id only."""

STORED = "STORED"

PEEK_SECONDS = 1.0  # for one answer of Redis, beyond a call's deadline, while its caller waits

_ENDED = script("ledger/ended")
"""Returns the number of each stored result, from 1, and its value, or b"" for one that is to be fetched alone."""

_CHUNK = 1_000  # results that are asked about at a time
_MOST_BYTES = 2**20  # of the results in one answer


class Verifier:
    """Judges what comes from one Redis, for one process. `connection` is only used for unsigned results."""

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
        """Judge whether a report is genuine. Costs one hash."""
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
        """Judge a call's end in Celery's form."""
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
        """Stop looking workers up."""
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


class ResultReader:
    """Reads stored results.

    `connection` is started on first use, and closed with the reader; `found` gets key and content.
    """

    def __init__(self, connection: PipelinedConnection, found: Found) -> None:
        self._connection = connection
        self._found = found
        self._is_open = False
        self._wanted: dict[bytes, None] = {}
        self._fetching: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Stop fetching."""
        if self._fetching is not None:
            await end([self._fetching])
        await self._connection.aclose()

    def fetch(self, key: bytes) -> None:
        """Fetch a large result soon, after those that are wanted already."""
        self._wanted[key] = None
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_all(), name="toolfleet-shelf")

    async def sweep(self, keys: Sequence[bytes]) -> None:
        """Fetch the existing ones of these, large ones later. Raises `RedisConnectionLost` or `ResponseError`."""
        for start in range(0, len(keys), _CHUNK):
            chunk = keys[start : start + _CHUNK]
            await self._opened()
            found = iter(await self._connection.send(*_ENDED.command(results=chunk, most_bytes=_MOST_BYTES)))
            for number, content in zip(found, found, strict=True):
                if content:
                    self._found(chunk[number - 1], content)
                else:
                    self.fetch(chunk[number - 1])

    async def peek(self, key: bytes) -> bytes | None:
        """Return the present value; a connection that is lost meanwhile is waited for.

        Raises `OSError` or `ResponseError` if Redis does not answer in a second.
        """
        async with asyncio.timeout(PEEK_SECONDS):
            await self._opened()
            content: bytes | None = await self._connection.execute("GET", key)
            return content

    async def end_of(self, record: str, key: bytes) -> str | None:
        """Return a call's stored result, "" if that has expired; `None` if by the ledger's `record` it has not ended.

        Raises as `peek`.
        """
        async with asyncio.timeout(PEEK_SECONDS):
            await self._opened()
            (state, result), value = await asyncio.gather(
                self._connection.execute("HMGET", record, "state", "result"), self._connection.execute("GET", key)
            )
        return (result or value or b"").decode(errors="replace") if state == b"done" else None

    async def _opened(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._connection.start()
        await self._connection.connected()

    async def _fetch_all(self) -> None:
        while self._wanted:
            key = next(iter(self._wanted))
            # What cannot be had now is swept later.
            with contextlib.suppress(RedisConnectionLost, ResponseError):
                await self._opened()
                self._found(key, await self._connection.send("GET", key))
            self._wanted.pop(key, None)


class EndCheck:
    """Checks the ends of one agent's calls.

    `ended(channel, meta)` is called with an end that the ledger has, or with `FORGED`.

    A call without an end in the ledger continues: nothing is called, and its next announcement is judged by itself.
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
        """Stop checking."""
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
        """Judge an end; return `unsure` if Redis does not say which workers are running."""
        verdict = self._verifier.judge_end(call_id, meta)
        if verdict == "unsure":
            await self._verifier.check_workers()
            verdict = self._verifier.judge_end(call_id, meta)
        return verdict


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
