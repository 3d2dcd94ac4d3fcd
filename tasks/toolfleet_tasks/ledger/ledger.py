"""Keeps one record a call in Redis, the truth about it: says who may run it, and which result is its one result.

If it cannot be reached, nothing is run: `claim` waits, and so does `finish` with a result. The scripts are in
`lua/ledger.lua`, the leases in `ledger/claims.py`.
"""

import asyncio
import functools
import itertools
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import EffectState, PublishedCall, Terms, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.calls import ApprovedCall, note
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.script import Parameters, Script
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import TextSeal
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_tasks.ledger import parameters as build
from toolfleet_tasks.ledger.audit import Auditor, PartsOfLine, tail_of
from toolfleet_tasks.ledger.claims import Claim, Claims, EarlierAttempts, NotClaimed, Refusal
from toolfleet_tasks.ledger.contents import ContentsWriter, dead_letter, is_dead
from toolfleet_tasks.ledger.parameters import Ended, How, Seconds
from toolfleet_tasks.ledger.retry import MAX_ATTEMPTS
from toolfleet_tasks.ledger.scripts import BURY_ENDED, CLAIM, CLOSE, END, FINISH, CallKeys, LedgerKeys
from toolfleet_tasks.ledger.waiting import SuspendedCalls
from toolfleet_tasks.limits import TAKE, limits_of_call, refused_by
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.fleet_results import CallEnding
from toolfleet_tasks.messages.ids import kept_seconds
from toolfleet_tasks.messages.signing import Signatures, seal_of
from toolfleet_tasks.redis_connection import (
    Part,
    PipelinedConnection,
    RedisConnectionClosed,
    RedisConnectionLost,
    run_durably,
    write_durably,
)
from toolfleet_tasks.results.stored import announcement, celery_value, read_stored, signed
from toolfleet_tasks.results.verifier import Verifier
from toolfleet_tasks.scripts import COUNTED_FROM_BYTES, LONGEST_LEASE_SECONDS

__all__ = ["Ledger", "NotClaimed", "ResultNotStored"]

_MARGIN_SECONDS = 60  # a record outlives its call's deadline: clocks differ

ANY_DATA = "*"
"""Whatever data Redis has, those of a call are among them."""
_ENDED = 1  # what `FINISH` says if there is nothing more to say
_LOST = -1  # what `TAKE` says if others have the call
_WAITS = {b"asked": "input_required", b"approval": "waiting_approval"}  # in the place of a holder's token
_MOST_UNANSWERED = 1_000

# Redis does nothing else for as long as a batch takes.
_MOST_IN_BATCH = 64
_LARGEST_BATCH = 256_000  # bytes

# Characters: with a longer value than 64 bytes Redis keeps a record in another form, of several times the size.
_LONGEST_WORKER = 37
_LONGEST_SHORT = 23  # characters of it behind a tag, which has 26 at most, and a time, which has 15 with its signs
_PROCESS = 12  # hex digits
_ODD = re.compile(r"[^\w.@:/-]", re.ASCII)

_MOST_AT_ONCE = 256  # answered within a tenth of a second where the agent's loop is busy with nothing else
_TICKS = 5  # looks at whether Redis was heard
_LONGEST_SECONDS = 10.0  # for one question, however much is heard meanwhile


@functools.lru_cache(maxsize=2)  # of thousands of ends in a second
def _time_of(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:-6]


def approval_seal(settings: Settings) -> TextSeal:
    """Return the seal of approvals. Raises `SettingsError` without the libraries."""
    return TextSeal(settings.signing_key, purpose="approval", old_keys=settings.signing_keys_old)


def is_approved(claim: Claim, settings: Settings) -> bool:
    """Return whether the ledger has a genuine approval of the call; for a call that needs none, whether it has none."""
    terms = claim.call.approval
    if terms is None or not claim.approved:
        return terms is None and not claim.approved
    try:
        found = json_text.load(ApprovedCall, approval_seal(settings).read(claim.approved))
    except (MessageRefused, ValueError):
        return False
    return (found.call_id, found.binding) == (claim.call.call_id, terms.binding)


class ResultNotStored(Exception):
    """Redis refuses to store a result, for good: its size, most often. Nothing is recorded."""


class Ledger:
    """The records of one Redis, over one line. Belongs to the line's event loop.

    `writes_results`: whether a finished call's result is written under Celery's key here, in the same step as the
    record; else Celery's own backend does it afterwards. What others have stored is only passed on if the `verifier`
    believes it.
    """

    def __init__(self, connection: PipelinedConnection, settings: Settings, *, writes_results: bool) -> None:
        self.claims = Claims(connection, lease_seconds=min(settings.lease_seconds, LONGEST_LEASE_SECONDS))
        self.window = LedgerWindow(lambda: connection.heard_at)
        self._connection = connection
        self._settings, self._keys = settings, settings.keys
        self._kept_seconds = kept_seconds(None, settings)
        script_keys = LedgerKeys(settings.keys, settings.module_concurrency)
        self._keys_of, self._keys_of_unknown = script_keys.of, script_keys.of_unknown
        self.writes_results = writes_results
        self._letters = seal_of(settings, purpose="dead letter")
        self._results = Signatures(settings, "result")
        self.verifier = Verifier(connection, settings)
        self._earlier = EarlierAttempts(settings, self.verifier)
        self._ends = FinishBatcher(connection, self.claims)
        self.waiting = SuspendedCalls(connection, settings.keys, self.claims, self._earlier)
        self._auditor, self._contents = Auditor(settings), ContentsWriter(settings)
        self._unanswered = dict[str, str]()  # by call id: the token of an end that was sent, and its answer lost
        self.tokens = FencingTokens()

    async def claim(
        self, call: PublishedCall, *, deaths: int | None = 0, can_reach: bool = True, replica: str = ""
    ) -> Claim | NotClaimed:
        """Ask for a call, however long Redis is away. A claim must be kept with `claims.hold`, and ended or closed.

        `deaths`: of workers that held it; `None` if only the leases of those that had started it count. `can_reach`:
        whether this worker can connect to the call's module, as far as it knows. `replica`: which of its processes it
        would ask, if earlier attempts have surely done nothing.
        """
        claim = self.claims.made(call, self._keys_of(call), self.tokens.next(), self._seconds_of(call).record)
        parameters = build.of_claim(
            claim, self._settings, self.claims.lease_ms, deaths=deaths, can_reach=can_reach, replica=replica
        )
        try:
            answer = await self._run(CLAIM, parameters)
            kind = answer[0].decode()
            if kind == "done":
                return NotClaimed("done", result=await self.verifier.believed(call.call_id, answer[1]))
            if kind in {"early", "busy", "full", "paused", "away", "queued", "newer", "stale", "behind"}:
                return NotClaimed(cast("Refusal", kind), rest_seconds=answer[1] / 1000 if answer[1:] else 0)
            if answer[3]:  # otherwise it was not tried before
                claim.last = await self._earlier.last(call.call_id, answer[3])
            if answer[6]:
                claim.accepted = await self._earlier.accepted(call.call_id, answer[6])
        except asyncio.CancelledError:  # it may be granted just now
            self.claims.give_back(claim)
            raise
        claim.read(answer)
        return claim

    def claimed(self, call: PublishedCall, token: str, sent_at: tuple[float, float]) -> Claim:
        """Take over the claim that was made as the call's message was fetched, by a command that was sent then."""
        seconds = self._seconds_of(call, sent_at[1]).record
        return self.claims.made(call, self._keys_of(call), token, seconds, sent_at=sent_at)

    async def take(self, claim: Claim, terms: Terms | None) -> ToolResult | None:
        """Have a call that is about to begin count in its limits, if it does not yet; the refusal, if there is no room.

        If others have the call by now, nothing changes but that `claim.on_lost` is called.
        """
        call = claim.call
        limits = limits_of_call(call, terms, self._settings)
        if not limits and call.terms is None:  # otherwise its agent counts it, until a worker has started it
            return None
        held, held_ms = self._keys.held(call.call_id), self._seconds_of(call).record * 1000
        parameters = build.of_take(claim, held, limits, held_ms=held_ms)
        answer = await self._run(TAKE, parameters)
        if answer == _LOST:
            self.claims.drop(claim)
            claim.on_lost()
        elif limits:
            note("limits", "denied" if isinstance(answer, list) else "allowed")
        return refused_by(call.tool_name, limits, answer[1:]) if isinstance(answer, list) else None

    async def close(self, claim: Claim, attempt: Attempt, *, seconds: float, so_far: EffectState) -> bool:
        """An attempt has ended, and another follows. False if others have the call by now."""
        text = json_text.dump(attempt.result)
        how, ttl = build.ended(claim.call, attempt, seconds=seconds), self._seconds_of(claim.call)
        signature = self._earlier.signature(claim.call.call_id, text)
        parameters = build.of_close(claim, how, so_far=so_far, text=text, signature=signature, seconds=ttl)
        is_ours = await self._run(CLOSE, parameters)
        self.claims.drop(claim, answer=is_ours, is_end=False)
        return bool(is_ours)

    def note(self, claim: Claim, result: ToolResult) -> None:
        """Say what its worker knows of a call before it asks further: a deadline that comes first ends the call so.

        Its place in its module is free. Is not waited for; where others have the call, nothing changes.
        """
        self.claims.note(claim, self._value(claim.call.call_id, json_text.dump(result)), tail_of(result))

    async def finish(
        self,
        claim: Claim,
        result: ToolResult,
        *,
        attempt: Attempt | None = None,
        seconds: float = 0,
        decisions: Mapping[str, str] = MappingProxyType({}),
        message: tuple[str, str, str] | None = None,
    ) -> str | None:
        """Store the call's one result, after its last `attempt`, with its audit line, and return its text.

        `message`: the one that has brought it, if this Redis has it: both of its keys, and its tag. It is acknowledged in the same
        step.

        `None`, with nothing stored, if others have the call, or have ended it. Raises `ResultNotStored`.
        """
        call, text, seen = claim.call, json_text.dump(result), result.audit
        # Redis makes Celery's value and the line of the text, which says nearly all that is in them, if that is short.
        is_short = self.writes_results and seen.attempts > 0 and len(text) < COUNTED_FROM_BYTES
        is_short = is_short and (seen.call_id, seen.tool) == (call.call_id, call.tool_name)
        if is_short:
            value, announced = text, ""
        elif self.writes_results:
            value = self._value(call.call_id, text)
            announced = announcement(call.call_id, value)
        else:  # in the record itself
            value, announced = "", self._value(call.call_id, text) if self.verifier.is_on else text
        letter = "" if result.success else self._letter_of_end(claim, result, attempt)
        own_ms = None if attempt is None else claim.own_ms(seconds)
        kept = self._kept_of(call)
        line = self._auditor.line_of(call, result, decisions, own_ms, is_short=is_short)
        if is_short:
            line += f"\n{signed(self._results.of(call.call_id, text))}" if self.verifier.is_on else "\n"
        parameters = build.of_finish(
            claim,
            build.ended(call, attempt, seconds=seconds) if attempt else Ended(),
            result.effect_state,
            value=value,
            announcement=announced,
            letter=letter,
            line=line,
            time=_time_of(int(seen.ts)) if is_short else "",
            seconds=Seconds(kept, claim.ttl_seconds or kept),
            message=message,
            letters_kept=self._settings.dead_letters_kept,
            lines_kept=self._auditor.kept,
        )
        if self._contents.is_on:
            self._contents.keep(self._connection, call, result, claim.token)  # leaves in the same write as the next one
        answer, size = None, len(text)
        if size <= _LARGEST_BATCH:
            answer = await self._ends.answer(claim, parameters, size=size)
        if answer is None:
            answer = await self._finish_alone(claim, parameters, size=size)
        if not answer:
            return None
        self._auditor.tell_finished(call, result, line, is_kept=answer == _ENDED)
        return text

    async def end(self, call: PublishedCall, ending: CallEnding, *, data_id: str) -> str:
        """End a call from outside, unless it has ended.

        Returns the stored result: Celery's value, or the result's text.

        `data_id`: the data that the Redis at the connection's other end must have now, so that a missing record never
        existed; `ANY_DATA` if that is sure, "" if it may have been lost. Sent once, for another connection may lead to
        another Redis: raises `RedisConnectionLost`.
        """
        answer = await self._end_once(call, ("any", data_id), ending)
        return await self.verifier.believed(call.call_id, answer[1])

    async def withdraw(self, call: PublishedCall, ending: CallEnding, *, data_id: str) -> str | None:
        """End a call as `end` does, but only if no worker has ever started it: else `None`, with nothing changed."""
        answer = await self._end_once(call, ("unbegun", data_id), ending)
        return None if answer[0] == b"begun" else await self.verifier.believed(call.call_id, answer[1])

    async def refuse(self, call_id: str, result: ToolResult, *, begun: ToolResult | None = None) -> str | None:
        """End a call of which only the id is known.

        One that a worker has ever started ends as `begun`; without that `None` is returned, and nothing changed.
        """
        keys = self._keys_of_unknown(call_id)
        ttl = kept_seconds(None, self._settings, call_id.rpartition(".")[0])  # perhaps of a program
        mode = ("refused", "") if begun is None else ("any", ANY_DATA)
        how = How(self._token_of_end(call_id), *mode, Seconds(ttl, ttl))
        ending = CallEnding(result, result, begun or result)
        parts = self._auditor.parts_of_refusal(call_id, ending)
        answer = await self._run(END, self._end_parameters(call_id, keys, how, ending, parts))
        self._auditor.tell_end(answer, parts)
        return None if answer[0] == b"begun" else await self.verifier.believed(call_id, answer[1])

    async def bury(self, call: PublishedCall, result: ToolResult) -> None:
        """Keep a dead letter, as if it had ended so, of a call that has ended by now."""
        keys, letter = self._keys_of(call), self._letter(call, result)
        kept = self._settings.dead_letters_kept
        names = {"record": keys.record, "dead": keys.dead, "dead_order": keys.dead_order}
        await self._run(BURY_ENDED, BURY_ENDED.parameters(**names, call_id=call.call_id, letter=letter, kept=kept))

    async def _end_once(self, call: PublishedCall, mode: tuple[str, str], ending: CallEnding) -> Any:
        keys, letter = self._keys_of(call), self._letter(call, ending.unknown)
        parts = self._auditor.parts_of_end(call, ending)
        how = How(self._token_of_end(call.call_id), *mode, self._seconds_of(call))
        try:
            answer = await self._send_end(self._end_parameters(call.call_id, keys, how, ending, parts, letter))
        except RedisConnectionLost:
            self._unanswered[call.call_id] = how.token  # sent again with it, it is still known as ours
            if len(self._unanswered) > _MOST_UNANSWERED:
                del self._unanswered[next(iter(self._unanswered))]
            raise
        self._auditor.tell_end(answer, parts)
        if self._contents.is_on and answer[0] == b"ended":
            ended = read_stored(answer[1].decode(errors="replace"), call.tool_name)
            self._contents.keep(self._connection, call, ended, how.token)
        return answer

    async def _send_end(self, parameters: Parameters) -> Any:
        try:
            return await self._connection.send("EVALSHA", END.digest, *parameters)
        except ResponseError as exc:
            if "NOSCRIPT" not in str(exc):
                raise
        return await self._connection.send("EVAL", END.text, *parameters)

    def _token_of_end(self, call_id: str) -> str:
        return self._unanswered.pop(call_id, None) or self.tokens.next()

    def _end_parameters(
        self, call_id: str, keys: CallKeys, how: How, ending: CallEnding, parts: PartsOfLine, letter: str = ""
    ) -> Parameters:
        results = (ending.unbegun, ending.undone, ending.unknown)
        values = [self._value(call_id, json_text.dump(one)) for one in results]
        kept, yields = self._settings.dead_letters_kept, ending.yields
        return build.of_end(call_id, keys, how, values, parts, letter=letter, letters_kept=kept, yields=yields)

    def _value(self, call_id: str, text: str) -> str:
        return celery_value(call_id, text, self._results.of(call_id, text))

    @property
    def connection(self) -> PipelinedConnection:
        """The connection to its Redis."""
        return self._connection

    async def connected(self) -> None:
        """Wait until Redis can be asked again. Raises `RedisConnectionClosed`."""
        await self._connection.connected()

    async def state_of(self, call_id: str) -> str:
        """Return a call's state: `queued`, `running`, `retrying`, `input_required`, `waiting_approval` or `done`."""
        command = ("HMGET", self._keys.call(call_id), "state", "token", "begun", "accepted")
        found = cast("list[bytes | None]", await write_durably(self._connection, command, size=0))
        state, token, begun, accepted = found
        if state is not None:
            return state.decode()
        if token in _WAITS:
            return _WAITS[token]
        if token is not None or accepted is not None:
            return "running"
        return "queued" if begun is None else "retrying"

    async def _finish_alone(self, claim: Claim, parameters: Parameters, *, size: int) -> Any:
        try:
            answer = await run_durably(self._connection, FINISH, parameters, size=size)
        except RedisConnectionClosed:
            raise
        except (ResponseError, RedisConnectionLost) as exc:
            raise ResultNotStored(f"Redis refuses to store the result ({size} bytes): {exc}") from exc
        self.claims.drop(claim, answer=answer)
        return answer

    def _run(self, script: Script, parameters: Parameters) -> Coroutine[Any, Any, Any]:
        return run_durably(self._connection, script, parameters)

    def _kept_of(self, call: PublishedCall) -> int:
        key = call.idempotency_key
        return self._kept_seconds if key is None else kept_seconds(key, self._settings, call.job_id)

    def _seconds_of(self, call: PublishedCall, now: float | None = None) -> Seconds:
        """Return the life of its record: as long as its result, and until the call can no longer be started."""
        kept = self._kept_of(call)
        now = fleet_clock.now() if now is None else now
        return Seconds(kept, max(kept, round(call.deadline_at - now) + _MARGIN_SECONDS))

    def _letter_of_end(self, claim: Claim, result: ToolResult, attempt: Attempt | None) -> str:
        """Return the dead letter of a call that its worker ends without success, after its last `attempt`, or ""."""
        call = claim.call
        if call.effect == "read" and (
            claim.granted == "open" or (attempt is not None and attempt.unreached is not None)
        ):
            return ""  # its module was not there, and there is nothing to find out
        is_unseen = claim.answer_before is None if attempt is None else attempt.outcome is Outcome.UNKNOWN
        # Only what it has answered has a tool without an effect repeated after it may have acted: one answer makes no letter, nor do two.
        is_repeat = call.effect is None and not is_unseen and claim.so_far != "none"
        is_exhausted = claim.attempts >= MAX_ATTEMPTS and not is_repeat
        return self._letter(call, result, is_unseen=is_unseen, is_exhausted=is_exhausted)

    def _letter(
        self, call: PublishedCall, result: ToolResult, *, is_unseen: bool = True, is_exhausted: bool = False
    ) -> str:
        """Return the dead letter of a call that ends so, or "". `is_unseen`: the end of its last attempt is unknown."""
        if not is_dead(call, result, is_unseen=is_unseen, is_exhausted=is_exhausted):
            return ""
        return self._letters.sign(dead_letter(call, result, died_at=fleet_clock.now()))


class FinishBatcher:
    """Collects the ends of calls of one turn of the loop, and sends them as one script. Belongs to the connection's event loop.

    Redis decides each end by itself. Whatever it has not answered, each is to be sent again alone.
    """

    def __init__(self, connection: PipelinedConnection, claims: Claims) -> None:
        self._connection = connection
        self._claims = claims
        self._open: _FinishBatch | None = None

    async def answer(self, claim: Claim, parameters: Parameters, *, size: int) -> Any:
        """Send the end of a call, whose text has so many bytes, and drop its claim once Redis has decided.

        Returns the answer of `FINISH`; `None` if there is none.
        """
        batch, shared = self._open, build.shared_in_finish(parameters)
        is_fitting = batch is not None and len(batch.ends) < _MOST_IN_BATCH and batch.size + size <= _LARGEST_BATCH
        if batch is None or not is_fitting or batch.shared != shared:
            batch = self._open = _FinishBatch(shared)
            batch.ends.append((claim, parameters, None))
            batch.size = size
            sent = self._connection.send_built(partial(self._close, batch))
            sent.add_done_callback(partial(self._decide, batch))
            # The first one waits for the reply itself: an end that leaves alone takes no turn of the loop more.
            try:
                answer = await sent
            except (ResponseError, RedisConnectionLost):
                return None
            return answer[0] if isinstance(answer, list) else answer
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        batch.ends.append((claim, parameters, reply))
        batch.size += size
        return await reply

    def _close(self, batch: "_FinishBatch") -> tuple[Part, ...]:
        """Return the command, as it leaves."""
        if self._open is batch:
            self._open = None
        ends = [parameters for _, parameters, _ in batch.ends]
        return ("EVALSHA", FINISH.digest, *(ends[0] if len(ends) == 1 else build.of_finish_many(ends)))

    def _decide(self, batch: "_FinishBatch", sent: "asyncio.Future[Any]") -> None:
        """Give each its answer.

        The claims are dropped now: a renewal that was answered together with this would take them for lost.
        """
        if self._open is batch:  # the connection was lost before it left
            self._open = None
        found = None if sent.cancelled() or sent.exception() is not None else sent.result()
        answers = found if isinstance(found, list) else [found] * len(batch.ends)
        for (claim, _, reply), answer in zip(batch.ends, answers, strict=True):
            if answer is not None:
                self._claims.drop(claim, answer=answer)
            if reply is not None and not reply.done():
                reply.set_result(answer)


class _FinishBatch:
    """Ends that leave together: claims, parameters, and who waits for the answer; `size` counts the bytes of their texts.

    `shared`: the parameters in which they agree.
    """

    __slots__ = ("ends", "shared", "size")

    def __init__(self, shared: object) -> None:
        self.shared = shared
        self.ends = list[tuple[Claim, Parameters, asyncio.Future[Any] | None]]()
        self.size = 0


class FencingTokens:
    """The fencing tokens of one process.

    A worker's tokens say when each was made, and by which worker: so does the record of a call that it has lost.
    """

    def __init__(self) -> None:
        self._process, self._count, self._last = randomness.uuid4().hex, itertools.count(), 0
        self._worker: str | None = None
        self._shown = ""

    def begin_with(self, name: str) -> None:
        """Have those to come begin with the name under which their worker holds messages. No other tokens may."""
        self._process = name

    def serve(self, worker: str | None) -> None:
        """Have those to come say that this worker has made them."""
        if worker and worker != self._worker:
            self._worker, self._shown = worker, _ODD.sub("_", worker)[:_LONGEST_WORKER]

    def next(self) -> str:
        """Return a new unique token."""
        return f"{self._process[:_PROCESS]}{self._mark()}" if self._shown else f"{self._process}-{next(self._count)}"

    @property
    def worker(self) -> str:
        """The worker as a token shows it that is made of a message's tag; '' as long as that is not known."""
        return self._shown[:_LONGEST_SHORT]

    def _mark(self) -> str:
        self._last = max(int(fleet_clock.now() * 1_000_000), self._last + 1)
        return f"~{self._last:x}~{self._shown}"


class LedgerWindow:
    """A window for a limited number of requests.

    `heard_at`: when Redis was last heard over their connection, by the loop's clock.

    It measures Redis's silence, and neither the wait for other requests nor that for a busy loop.
    """

    def __init__(self, heard_at: Callable[[], float]) -> None:
        self._heard_at = heard_at
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)
        self._silent_at = float("-inf")

    @asynccontextmanager
    async def place(self, seconds: float) -> AsyncGenerator[None]:
        """Ask the ledger in this block. Raises `TimeoutError` when Redis was silent for `seconds`, here or for others meanwhile."""
        clock = asyncio.get_running_loop().time
        came_at = clock()
        async with self._places:
            if self._silent_at >= came_at:  # else each batch would find out for itself, long after the deadline
                raise TimeoutError
            try:
                async with asyncio.timeout(None) as limit:
                    watch = _Watch(limit, self._heard_at, seconds)
                    try:
                        yield
                    finally:
                        watch.timer.cancel()
            except TimeoutError:
                self._silent_at = clock()
                raise


class _Watch:
    """Ends a block when Redis is silent for so long, by as many ticks of the loop as come in time.

    A tick that is late says that the loop was busy: then nothing was sent or heard, and that is no silence of Redis's.
    """

    def __init__(self, limit: asyncio.Timeout, heard_at: Callable[[], float], seconds: float) -> None:
        self._limit = limit
        self._heard_at = heard_at
        self._interval = seconds / _TICKS
        self._silent_ticks = 0
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + max(_LONGEST_SECONDS, seconds)
        self._arm()

    def _arm(self) -> None:
        self._since = self._loop.time()
        self.timer = self._loop.call_later(self._interval, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        if self._heard_at() >= self._since:
            self._silent_ticks = 0
        elif now - self._since < 2 * self._interval:
            self._silent_ticks += 1
        if self._silent_ticks >= _TICKS or now >= self._until:
            self._limit.reschedule(now)
        else:
            self._arm()
