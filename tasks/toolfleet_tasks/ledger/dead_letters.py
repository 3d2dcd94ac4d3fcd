"""Dead letters: calls whose end nobody can know, or that failed inside the fleet, kept in Redis for an operator.

The ledger writes them, with what ends a call (`lua/scripts/dead_letters/bury.lua`); here they are worded, read and dropped.
"""

import json
import math
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.dead_letters import DeadAttempt, DeadLetter
from toolfleet_registry.contracts.tool_context import ToolContext
from toolfleet_registry.errors import MessageRefused, NoSuchDeadLetter
from toolfleet_registry.policy.redaction import REDACTED, redacted, scrubbed
from toolfleet_registry.policy.sensitive_results import OUR_WORDS
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.redis_errors import answering
from toolfleet_registry.settings import Settings
from toolfleet_tasks.lua.dead_letters import SETTLE, TAKE
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import Seal

NOT_KEPT = "[not kept]"
"""What stands in the place of an argument that is too large to be kept, or was no JSON."""

MOST_LISTED = 1_000
"""Letters that one look may bring."""

_DEAD_CODES = frozenset({"outcome_unknown", "internal"})
_MOST_BYTES = 64_000  # of a letter's arguments as JSON: all letters together must leave Redis room for the fleet
_LONGEST_TEXT = 2_000  # characters of a reason or a key
_PATIENCE_SECONDS = 5  # a command takes a millisecond, or Redis is away
_CHUNK = 1_000  # letters dropped at once, so that Redis is not held up
_AS_BYTES = {NEVER_DECODE: True}  # however the client was built: a letter may be no text


def is_dead(call: PublishedCall, result: ToolResult, *, is_unseen: bool, is_exhausted: bool) -> bool:
    """Whether an operator must hear of a call that ended so: nobody can know its end, or it failed inside the fleet, or twice.

    `is_unseen`: nobody has heard the end of its last attempt; `is_exhausted`: there were two. A `read` tool that has
    answered that it failed leaves nothing to find out.
    """
    if result.success:
        return False
    has_answered = call.effect == "read" and result.effect_state == "none" and result.error_code == "module_error"
    is_unknown = is_unseen and result.effect_state == "unknown" and call.effect not in {"read", "idempotent"}
    return is_unknown or (is_exhausted and not has_answered) or result.error_code in _DEAD_CODES


def reason_of(call: PublishedCall, result: ToolResult) -> str:
    """Why a call has failed, in words that may be kept, at most 2,000 characters of them.

    Without sensitive arguments, and without a module's words where results are sensitive.
    """
    if call.hides_results and result.error_code not in OUR_WORDS:
        return REDACTED
    return scrubbed(result.error or "", call.arguments, redacted(call.arguments, call.sensitive))[:_LONGEST_TEXT]


def dead_letter(
    call: PublishedCall, result: ToolResult, *, attempts: tuple[DeadAttempt, ...] = (), died_at: float
) -> str:
    """The letter as it is kept; `died_at` in seconds since the epoch. Never fails, and is never much over 64 kB.

    Without sensitive arguments; its reason is as `reason_of` says. Over 64 kB of JSON, the largest arguments are `NOT_KEPT`; what
    an agent's context quotes is kept where there is room beside them.
    """
    shown = redacted(call.arguments, call.sensitive)
    kept = _within_bounds(shown)
    letter = DeadLetter(
        call_id=call.call_id,
        tool_name=call.tool_name,
        arguments=kept,
        is_redacted=_differ(kept, call.arguments),
        caller=call.caller,
        user_id=call.user_id,
        effect=call.effect,
        error_code=result.error_code or "internal",
        reason=reason_of(call, result),
        attempts=attempts,
        published_at=call.published_at,
        died_at=died_at,
        idempotency_key=call.idempotency_key and call.idempotency_key[:_LONGEST_TEXT],
        replay_of=call.replay_of,
        context=_kept_context(call, most=_MOST_BYTES - (_size(kept) or 0)),
        tool_version=call.tool_version and call.tool_version[:_LONGEST_TEXT],
    )
    try:
        return json_text.dump(letter)
    except (ValueError, RecursionError):  # deeper than pydantic goes
        return json_text.dump(letter.model_copy(update={"arguments": {"*": NOT_KEPT}, "is_redacted": True}))


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


@dataclass(frozen=True, slots=True)
class UnreadableLetter:
    """What is kept under a call's id is no dead letter: another version's, perhaps. It can be dropped only."""

    call_id: str
    """The call's id."""
    reason: str
    """Why it cannot be read."""


Kept: TypeAlias = DeadLetter | UnreadableLetter


class DeadLetters:
    """The dead letters in Redis. Everything raises `FleetUnavailable` when Redis does not answer within 5 s.

    With a signing key, a letter that was not signed with it, or one of the old ones, is unreadable: nobody replays what a stranger has planted.
    """

    def __init__(
        self,
        redis: Redis,
        keys: Keys = Keys(),  # noqa: B008 - it is frozen
        *,
        signing_key: str | None = None,
        old_keys: Sequence[str] = (),
    ) -> None:
        self._redis = redis
        self._keys = keys
        self._seal = Seal(signing_key, purpose="dead letter", old_keys=old_keys)

    async def count(self) -> int:
        """How many there are."""
        async with self._answering():
            return int(await self._redis.zcard(self._keys.dead_order))

    async def list(self, limit: int = 50, offset: int = 0) -> list[Kept]:
        """At most `limit` letters, of 1,000 at most, after the first `offset`; the latest first."""
        if not 1 <= limit <= MOST_LISTED or offset < 0:
            raise ValueError(f"limit must be from 1 to {MOST_LISTED}, and offset at least 0")
        keys, last = self._keys, offset + limit - 1
        async with self._answering():
            answer = await self._redis.execute_command("ZREVRANGE", keys.dead_order, offset, last, **_AS_BYTES)
            ids = cast("Sequence[bytes]", answer)
            answer = await self._redis.execute_command("HMGET", keys.dead, *ids, **_AS_BYTES) if ids else ()
            values = cast("Sequence[bytes | None]", answer)
        found = ((_text(call_id), value) for call_id, value in zip(ids, values, strict=True))
        return [self._read(call_id, value) for call_id, value in found if value is not None]  # None: dropped just now

    async def show(self, call_id: str) -> Kept:
        """The letter of this call. Raises `NoSuchDeadLetter`."""
        async with self._answering():
            value = await self._redis.execute_command("HGET", self._keys.dead, call_id, **_AS_BYTES)
        if value is None or "/" in call_id:
            raise NoSuchDeadLetter(call_id)
        return self._read(call_id, value)

    async def drop(self, call_ids: Iterable[str]) -> tuple[str, ...]:
        """Forget these letters. Returns the ids of those that were there."""
        wanted = list(dict.fromkeys(call_ids))
        dropped = list[str]()
        for start in range(0, len(wanted), _CHUNK):
            chunk = wanted[start : start + _CHUNK]
            async with self._answering(), self._redis.pipeline(transaction=True) as pipe:
                for call_id in chunk:
                    pipe.hdel(self._keys.dead, call_id, f"{call_id}/replay")
                    pipe.zrem(self._keys.dead_order, call_id)
                counts = await pipe.execute()
            dropped += [name for name, *found in zip(chunk, counts[::2], counts[1::2], strict=True) if any(found)]
        return tuple(dropped)

    async def drop_all(self) -> int:
        """Forget all letters. Returns how many there were."""
        async with self._answering(), self._redis.pipeline(transaction=True) as pipe:
            pipe.zcard(self._keys.dead_order)
            pipe.unlink(self._keys.dead, self._keys.dead_order)
            count, _ = await pipe.execute()
        return int(count)

    async def take(self, call_id: str, *, seconds: float) -> tuple[Kept, int]:
        """The letter, to be replayed within so many seconds: `settle` must follow. Raises `NoSuchDeadLetter`.

        With it, for how many seconds somebody else's replay of it may still run: above 0, it is not to be replayed now.
        """
        async with self._answering():
            found: Sequence[Any] | None = await self._redis.execute_command(
                *TAKE.command(dead=self._keys.dead, call_id=call_id, seconds=math.ceil(seconds)), **_AS_BYTES
            )
        if found is None or "/" in call_id:
            raise NoSuchDeadLetter(call_id)
        return self._read(call_id, found[0]), int(found[1])

    async def settle(self, call_id: str, *, replay_id: str | None, succeeded: bool) -> bool:
        """A replay has ended: drop the letter if it succeeded, or is a dead letter itself. Returns whether it was dropped."""
        keys = {"dead": self._keys.dead, "dead_order": self._keys.dead_order}
        command = SETTLE.command(**keys, call_id=call_id, replay_id=replay_id or "", succeeded=int(succeeded))
        async with self._answering():
            return bool(await self._redis.execute_command(*command))

    def _read(self, call_id: str, value: bytes) -> Kept:
        try:
            log, _, text = value.decode().rpartition("\n")
            letter = json_text.load(DeadLetter, self._seal.read(text))
        except MessageRefused as exc:
            return UnreadableLetter(call_id, str(exc))
        except ValueError as exc:
            return UnreadableLetter(call_id, f"It cannot be read ({type(exc).__name__}): {_first_line(exc)}")
        if letter.call_id != call_id:
            return UnreadableLetter(call_id, "It is the letter of another call.")
        return letter.model_copy(update={"attempts": parse_attempts(log)}) if log else letter

    @asynccontextmanager
    async def _answering(self) -> AsyncGenerator[None]:
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            try:
                yield
            finally:  # asked too seldom to keep a connection
                await self._redis.connection_pool.disconnect(inuse_connections=False)


def dead_letters_of(redis: Redis, settings: Settings) -> DeadLetters:
    """Those of a fleet with these settings."""
    return DeadLetters(redis, settings.keys, signing_key=settings.signing_key, old_keys=settings.signing_keys_old)


def _within_bounds(arguments: dict[str, Any]) -> dict[str, Any]:
    """Without what is no JSON, and without the largest ones above `_MOST_BYTES`. Where names alone are more, without all."""
    kept = {name: NOT_KEPT if _size(value) is None else value for name, value in arguments.items()}
    sizes = {name: _size(value) or 0 for name, value in kept.items()}
    total = sum(sizes.values()) + sum((_size(name) or 0) + 2 for name in kept)
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if total <= _MOST_BYTES:
            return kept
        kept[name] = NOT_KEPT
        total += len(NOT_KEPT) + 2 - sizes[name]
    return kept if total <= _MOST_BYTES else {"*": NOT_KEPT}


def _kept_context(call: PublishedCall, *, most: int) -> ToolContext | None:
    """Its numbers always, so that a replay speaks to the same chat; texts, which may quote arguments, within `most` bytes."""
    context = call.context
    if context is None:
        return None
    if call.sensitive:
        return context.model_copy(update={"raw_arg": "", "user_message": "", "kb_context": None})
    for left_out in ({}, {"kb_context": None}, {"kb_context": None, "raw_arg": "", "user_message": ""}):
        context = context.model_copy(update=left_out)
        if (_size(context.model_dump(mode="json")) or 0) <= most:
            break
    return context


def _differ(kept: dict[str, Any], arguments: dict[str, Any]) -> bool:
    """Whether anything was left out. What was not copied is not compared: it may be deeper than Python can look."""
    pairs = ((kept.get(name, NOT_KEPT), value) for name, value in arguments.items())
    return any(shown is not value and shown != value for shown, value in pairs)


def _size(value: Any) -> int | None:
    """Bytes as JSON; `None` for what came as something that only Python takes for JSON."""
    try:
        return len(json.dumps(value, allow_nan=False, separators=(",", ":")))
    except (ValueError, TypeError, RecursionError):
        return None


def _first_line(exc: Exception) -> str:
    return str(exc).partition("\n")[0][:_SHOWN]


def _text(call_id: bytes) -> str:
    return call_id.decode(errors="replace")


_ATTEMPT = re.compile(r"(?P<attempt>\d{1,4}) (?P<outcome>\w{1,40})(?: (?P<ms>\d{1,12}(?:\.\d{1,6})?))?;", re.ASCII)
_SHOWN = 200
