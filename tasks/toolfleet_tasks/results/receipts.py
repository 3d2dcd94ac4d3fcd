"""Confirms that callers have their results, so that Redis can drop the texts: many at once, some seconds later.

A result without an idempotency key can be asked for by no other client, and is removed. Under a key it is replaced by a
short one that says how the call ended, unless it is as short itself. An unconfirmed one stays until it expires.
"""

import asyncio
import hashlib
from collections import deque

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.names import RUN_PROGRAM
from toolfleet_registry.policy.hints import hint_for
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import Signatures
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionClosed, ignored, run
from toolfleet_tasks.results.stored import celery_value
from toolfleet_tasks.scripts import COUNTED_FROM_BYTES, script

HAD = script("storage/had")

log = get_logger(__name__)

SHORT_CHARACTERS = 1024
"""Of a result's text, that it stays under its idempotency key: what would stand in its place is hardly shorter."""

_PAUSE_SECONDS = 5.0  # so that many are confirmed at once; a text must be gone 30 s after it was had
_BATCH = 100  # results a command, so that no script holds Redis up
_LARGE_CHARACTERS = 2**18  # of what is confirmed without a pause
_MOST_WAITING = 10_000  # confirmations, while Redis is away; the oldest are given up
_MOST_LATER = 10_000  # that are confirmed in some minutes only: each takes about 1 kB here
_SETTLE_SECONDS = 2.0

Receipt = tuple[tuple[str, str, str, str], tuple[str, str, str]]
"""The keys and arguments of `HAD` for one result."""


class Receipts:
    """Confirms results over one connection, of one event loop, until `aclose`."""

    def __init__(self, connection: PipelinedConnection, settings: Settings) -> None:
        self._connection = connection
        self._keys = settings.keys
        self._signatures = Signatures(settings, "result")
        self._is_in_record = not settings.has_redis_broker  # the text: in addition to Celery's own key
        self._result_key = settings.keys.result("")
        self._dropped: list[str] = []  # calls
        self._waiting: list[Receipt] = []
        self._later = deque[tuple[float, str, str | None, str]]()  # when, by the loop's clock; call, user, what stays
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def had(self, call: PublishedCall, result: ToolResult, text: str) -> None:
        """Confirm that the call's own caller has its result, with this stored `text`."""
        if call.idempotency_key and len(text) <= SHORT_CHARACTERS:
            return
        if result.error_code == "cancelled" and call.tool_name == RUN_PROGRAM:
            return  # its program may look for it later
        if not call.idempotency_key and len(text) < COUNTED_FROM_BYTES and not self._is_in_record:
            self._dropped.append(call.call_id)  # most are of this kind: there is nothing to look at
            if (is_full := len(self._dropped) >= _BATCH) or self._timer is None:
                self._soon(is_full=is_full)
            return
        value = self._value_of(call, json_text.dump(verdict_of(call, result, text))) if call.idempotency_key else ""
        self._add(call.user_id, call.call_id, (value, ""), is_large=len(text) >= _LARGE_CHARACTERS)

    def had_for(self, seconds: float, call: PublishedCall, result: ToolResult, text: str) -> None:
        """Confirm the same for a caller who may lose the result and ask again for so long.

        The number of those is bounded.

        Beyond, and when the fleet is left, results stay until they expire.
        """
        if call.idempotency_key and len(text) <= SHORT_CHARACTERS:
            return
        if result.error_code == "cancelled" and call.tool_name == RUN_PROGRAM:
            return  # its program may look for it later
        if not call.idempotency_key and len(text) < COUNTED_FROM_BYTES and not self._is_in_record:
            self._connection.send("EXPIRE", self._keys.result(call.call_id), round(seconds)).add_done_callback(ignored)
            return
        value = self._value_of(call, json_text.dump(verdict_of(call, result, text))) if call.idempotency_key else ""
        if len(self._later) < _MOST_LATER:
            self._later.append((self._loop.time() + seconds, call.call_id, call.user_id, value))
            if len(self._later) == 1:
                self._loop.call_later(seconds, self._hand_over)

    def read(self, reader: PublishedCall, call_id: str) -> None:
        """Confirm that a call no longer waits for the result of the call `call_id`."""
        self._add(reader.user_id, call_id, ("", reader.call_id), is_large=False)

    async def aclose(self) -> None:
        """Confirm the rest, if Redis answers soon."""
        self._flush()
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=_SETTLE_SECONDS)
            self._sending.cancel()

    def _value_of(self, call: PublishedCall, text: str) -> str:
        return celery_value(call.call_id, text, self._signatures.of(call.call_id, text))

    def _hand_over(self) -> None:
        now = self._loop.time()
        while self._later and self._later[0][0] <= now:
            _, call_id, user_id, value = self._later.popleft()
            self._add(user_id, call_id, (value, ""), is_large=False)
        if self._later and not self._connection.is_closed:
            self._loop.call_at(self._later[0][0], self._hand_over)

    def _add(self, user_id: str | None, call_id: str, rest: tuple[str, str], *, is_large: bool) -> None:
        keys = self._keys
        names = (keys.call(call_id), keys.result(call_id), keys.readers(call_id), keys.stored(user_id))
        self._waiting.append((names, (call_id, *rest)))
        self._soon(is_full=is_large or len(self._waiting) >= _BATCH)

    def _soon(self, *, is_full: bool) -> None:
        if is_full:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(_PAUSE_SECONDS, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        dropped, self._dropped = self._dropped, []
        if dropped:  # what gets lost expires
            self._connection.send("UNLINK", *(self._result_key + call_id for call_id in dropped)).add_done_callback(
                ignored
            )
        if self._waiting and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._send_all(), name="toolfleet-receipts")

    async def _send_all(self) -> None:
        while self._waiting:
            del self._waiting[:-_MOST_WAITING]
            batch = self._waiting[:_BATCH]
            try:
                await self._send(batch)
            except RedisConnectionClosed:
                return
            except ResponseError as exc:  # they stay until they expire
                log.warning("receipts_refused", error=str(exc))
            del self._waiting[: len(batch)]

    async def _send(self, batch: list[Receipt]) -> None:
        keys, parts = zip(*batch, strict=True)
        await run(self._connection, HAD, HAD.parameters(results=keys, had=parts))


def verdict_of(call: PublishedCall, result: ToolResult, text: str) -> ToolResult:
    """Return what replaces a confirmed result: how it ended, and the digest of its text."""
    if not result.success:
        return result.model_copy(update={"result": None, "error": (result.error or "")[:SHORT_CHARACTERS]})
    digest = hashlib.sha256(text.encode()).hexdigest()
    again = call.effect in {"read", "idempotent"}
    gone = ToolResult.failed(
        call.tool_name,
        "result_dropped",
        f"Tool call was done before, and its result was handed over then; it is not kept any more (sha256:{digest}).",
        effect_state="done",
        retryable=again,
    )
    return gone.model_copy(update={"audit": result.audit, "hint": hint_for(gone)})
