"""Follows one published call to its end: reads its state, and answers its questions."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Literal, Self, TypeVar, get_args

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import Audit, Caller, PublishedCall, ToolResult
from toolfleet_registry.contracts.call_context import LogMessage, Progress
from toolfleet_registry.contracts.inputs import CallInputs, PendingInput, check_responses
from toolfleet_registry.errors import FleetUnavailable, InputNotTaken, MessageRefused, NotPublished, PublishUnconfirmed
from toolfleet_registry.policy.hints import hint_for
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_registry.system.shared_timers import SharedTimer
from toolfleet_tasks.fairness import WaitQueue
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.ledger.waiting import KeptQuestion, Verdict
from toolfleet_tasks.messages import fleet_results, json_text
from toolfleet_tasks.messages.envelope import Label, args_shown, call_message, sender
from toolfleet_tasks.messages.fleet_results import CallEnding
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.queues import nets_around, queue_for
from toolfleet_tasks.redis_connection import RedisConnectionClosed, RedisConnectionLost
from toolfleet_tasks.results.listener import HeardLog, ResultListener, follow_progress, read_progress
from toolfleet_tasks.results.stored import ending_of, read_stored, result_in
from toolfleet_tasks.results.verifier import PEEK_SECONDS, Meta
from toolfleet_tasks.transport.publisher import Delivered, Publisher

Place = Literal["queued", "running", "retrying", "input_required", "waiting_approval", "done", "unknown"]

_SECONDS = 10.0  # for Redis to take an answer

HideInput = Callable[[str, Caller, Any], Any]
"""Hides personal data in what a person says to a tool; see `CallPreparation.hidden_input`."""

S = TypeVar("S")

_PLACES = {place: place for place in get_args(Place)}
_TAKE_BACK_SECONDS = 10.0  # for the ledger to learn that a call is cancelled


class CallStatus(str):
    """`queued`, `running`, `retrying`, `input_required`, `waiting_approval`, `done`, or `unknown`: Redis does not answer now. Equal to that plain text."""

    __slots__ = ("inputs", "progress")

    progress: Progress | None
    """What the call said last of how far it is, while it has not ended; `None` if it says nothing."""
    inputs: PendingInput | None
    """What the call asks, while it is `input_required`."""

    def __new__(cls, place: Place, progress: Progress | None = None, inputs: PendingInput | None = None) -> Self:  # noqa: D102 - the class says it
        status = super().__new__(cls, place)
        status.progress, status.inputs = progress, inputs
        return status

    def __getnewargs__(self) -> tuple[str, Progress | None, PendingInput | None]:  # type: ignore[override] # what `__new__` takes
        return str(self), self.progress, self.inputs


DONE = CallStatus("done")
UNKNOWN = CallStatus("unknown")


class InputAnswers:
    """The answers of one session to tools' questions, with personal data hidden.

    If the ledger's Redis has the queues, an answer and the call's message are written in one step.
    """

    def __init__(self, ledger: Ledger, publisher: Publisher, settings: Settings, hide: HideInput) -> None:
        self._asked, self._publisher, self._hide = ledger.waiting, publisher, hide
        self._seal, self._origin = seal_of(settings), sender()
        self._has_queues = settings.broker == settings.redis_url

    async def pending(self, call_id: str) -> PendingInput | None:
        """Return the call's present question, or `None`. Raises Redis's errors, and has no deadline."""
        found = await self._asked.find(call_id)
        return None if found is None or not found.is_open else found.pending

    async def answer(self, call_id: str, number: int | None, responses: Mapping[str, Any]) -> bool:
        """Answer question `number` of the call, or its present one. Returns False if it has the same answer already.

        Raises `InputNotTaken`, `ValueError` for an invalid answer, and `FleetUnavailable`: then it may have been taken,
        and the same answer may be given again.
        """
        async with _confirming():
            return await self._answer(call_id, number, responses)

    async def hidden(self, call_id: str, responses: Mapping[str, Any]) -> dict[str, Any]:
        """Return answers to the call's present question as its tool may have them. Raises as `answer` does."""
        async with _confirming():
            found = await self._asked.find(call_id)
        if found is None:
            raise InputNotTaken(call_id, "not_asked")
        inputs = self._answered(call_id, found, responses).inputs
        return {} if inputs is None else inputs.responses

    async def _answer(self, call_id: str, number: int | None, responses: Mapping[str, Any]) -> bool:
        found = await self._asked.find(call_id)
        if found is None or (not found.is_open if number is None else found.pending.round != number):
            return await self._judged(call_id, number or 0, responses)
        check_responses(found.pending, responses)
        call = self._answered(call_id, found, responses)
        now = fleet_clock.now()
        if call.deadline_at <= now:
            raise InputNotTaken(call_id, "ended")
        queue, text = queue_for(call), self._seal.seal(call)
        message = call_message(call, text=text, origin=self._origin, now=now) if self._has_queues else ""
        verdict = await self._asked.answer(call_id, found.pending.round, responses, queue=queue, message=message)
        is_new = self._verdict(call_id, verdict)
        if not self._has_queues:  # twice does no harm, and an earlier try may have been lost
            label = Label(call_id, call.tool_name, args_shown(call.arguments), queue, nets_around(call.limit_seconds))
            await self._publisher.republish(Delivered(text, label), delay=0, retries=0)
        return is_new

    async def _judged(self, call_id: str, number: int, responses: Mapping[str, Any]) -> bool:
        """Handle an answer to a question that the call does not ask now."""
        verdict = await self._asked.answer(call_id, number, responses, queue="", message="")
        return self._verdict(call_id, verdict)

    def _verdict(self, call_id: str, verdict: Verdict) -> bool:
        if verdict in {"taken", "again"}:
            return verdict == "taken"
        raise InputNotTaken(call_id, verdict)  # type: ignore[arg-type] # the two others are not among them

    def _answered(self, call_id: str, found: KeptQuestion, responses: Mapping[str, Any]) -> PublishedCall:
        """Return the call as it continues. Raises `InputNotTaken` if it is not the fleet's."""
        try:
            call = self._seal.open(found.text, task_id=call_id)
        except (MessageRefused, ValueError) as exc:
            raise InputNotTaken(call_id, "unknown") from exc
        given = self._hide(call.tool_name, call.caller, list(responses.values()))
        hidden = dict(zip(responses, given, strict=True))
        inputs = CallInputs(round=found.pending.round, responses=hidden, state=found.state, so_far=found.so_far)
        return call.model_copy(update={"inputs": inputs})


@asynccontextmanager
async def _confirming() -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(_SECONDS):
            yield
    except (OSError, ResponseError, NotPublished, PublishUnconfirmed) as exc:  # TimeoutError is an OSError
        raise FleetUnavailable("Redis has not confirmed the answer: give it again.") from exc


class PendingCall:
    """Follows one published call to its `ending`: a worker's result, or an end that the ledger accepts from this process.

    `revoke` tells the workers to drop a call, `spawn` runs something in the background, for which leaving the fleet
    waits a little, `had` confirms that its caller has a result of this stored text. A `guest` follows a call that
    another client has published: it never ends it. `data_id` names the data that Redis had when another process
    published it: one that continues the call ends it as its own, and is sure of nothing that a Redis with other data
    does not know. Without `shows_artifacts` its result names none: the models of an agent without a store could neither
    read them nor pass them on. A call has no task: a future, and a timer of the loop.
    """

    def __init__(
        self,
        call: PublishedCall,
        listener: ResultListener,
        *,
        ledger: Ledger,
        revoke: Callable[[str], Coroutine[Any, Any, None]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        had: Callable[[PublishedCall, ToolResult, str], None],
        answers: InputAnswers,
        is_guest: bool = False,
        data_id: str | None = None,
        shows_artifacts: bool = True,
    ) -> None:
        self._shows_artifacts = shows_artifacts
        self.call_id = call.call_id
        self.tool_name = call.tool_name
        self.ending: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        self._call = call
        self._listener = listener
        self._ledger = ledger
        self._revoke = revoke
        self._spawn = spawn
        self._had = had
        self.answers = answers
        self._is_guest = is_guest
        self.expires_at: float | None = None
        """Until when people may approve it, of a call that needs that, in seconds since the epoch."""
        self.may_wait = False
        """Whether it may still wait for people."""
        self._data_id = data_id
        # Before anything else is sent of the call: what it logs is announced once.
        self._log = None if call.log_level is None else HeardLog(listener, call.call_id, call.log_level)
        if self._log is not None:
            self.ending.add_done_callback(self._log.close)
        self._expected = listener.expect(call.call_id, self)
        self.is_answered = False
        """Whether the outcome of its publishing is known, or known to be uncertain."""
        self.is_sent = False
        """Whether this process has put the call into its queue, which is confirmed."""
        self._timer: SharedTimer | None = None
        self._turns: WaitQueue | None = None
        self._confirmation: asyncio.Future[None] | None = None

    @property
    def published_call(self) -> PublishedCall:
        """Return the call that is followed."""
        return self._call

    @property
    def sent_call(self) -> PublishedCall | None:
        """Return the call if this process has put it into its queue for sure, and it has not ended.

        Of calls that others have published, or that were perhaps not admitted, nothing may be published from here.
        """
        return None if not self.is_sent or self.ending.done() else self._call

    def published(self, deadline_at: float, turns: WaitQueue | None = None, *, until: float | None = None) -> None:
        """Note that the call is, or may be, in its queue.

        From now on its deadline is watched, in seconds since the epoch; `until`: the same by the loop's clock, if known.

        Who waits in `turns` for room in its caller's limit is told when it is over. Not by a callback of `ending`: that costs
        the loop a step, and five objects for as long as the call is in flight.
        """
        self._turns = turns
        timers = self._listener.timers
        if self.ending.done():
            self._over()
        elif until is not None:
            self._timer = SharedTimer(timers, until, self._expire, ())
        else:
            self._timer = timers.call_later(deadline_at - fleet_clock.now(), self._expire)

    def unconfirmed(self) -> None:
        """Note that it is unknown whether the call is in its queue, until it is `confirmed`."""
        self._confirmation = self.ending.get_loop().create_future()

    def confirmed(self) -> None:
        """Note that the call is in its queue after all, or has ended."""
        if self._confirmation is not None and not self._confirmation.done():
            self._confirmation.set_result(None)

    async def is_confirmed_within(self, seconds: float) -> bool:
        """Return whether the call was surely published, as soon as that is known."""
        if self._confirmation is not None and not self._confirmation.done():
            await asyncio.wait((self._confirmation, self.ending), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return self._confirmation is None or self._confirmation.done() or self.ending.done()

    def unpublished(self) -> None:
        """Stop following: the call is surely not in its queue."""
        self._stop_timer()
        if self._log is not None:
            self._log.close()
        self._listener.forget(self._expected)

    def ended(self, meta: Meta) -> None:
        """Implements `Waiter.ended`."""
        if meta["status"] == "SUCCESS":
            text = str(meta.get("result"))
            try:
                result = json_text.load(ToolResult, text)
            except ValueError:
                result = result_in(text, self.tool_name)
            self._end(result)
            if not self._is_guest:
                self._had(self._call, result, text)
        else:  # Celery's own words; how far the call had got, the ledger knows
            self._stop_timer()
            self._spawn(self._end_as(ending_of(meta, self._call)))

    def left(self) -> None:
        """Implements `Waiter.left`."""
        self._end(fleet_results.outcome_unknown(self.tool_name, "the agent left the fleet before the call had ended."))

    def refuse(self, result: ToolResult) -> None:
        """End the call, which is not in its queue, or perhaps not, unless its result is there already."""
        self._listener.forget(self._expected)
        self._end(result)

    async def withdraw(self, nothing: ToolResult) -> None:
        """End a call that may never have been published with the result `nothing`, unless a worker has started it: then its end will come.

        Without an answer of the ledger nothing changes: its end is listened for until its deadline.
        """
        unknown = fleet_results.outcome_unknown(self.tool_name, "the queue did not confirm the call.")
        ending, stored = CallEnding(nothing, nothing, unknown), None
        with contextlib.suppress(OSError, ResponseError):
            async with asyncio.timeout(max(self._call.deadline_at - fleet_clock.now(), 0)):
                stored = await self._in_ledger(self._ledger.withdraw, ending)
        if stored is not None:
            self._spawn(self._revoke(self.call_id))
            self.refuse(read_stored(stored, self.tool_name) if stored else unknown)

    def give_up(self) -> None:
        """Cancel the call: its caller has gone."""
        if not self.ending.done() or self.ending.cancelled():
            self._over()
            self._listener.forget(self._expected)
            self.ending.cancel()
            if not self._is_guest:
                self._take_back()

    def leave(self) -> None:
        """Stop following the call, which continues."""
        if not self.ending.done():
            self._over()
            self._listener.forget(self._expected)
            self.ending.cancel()

    async def cancel(self) -> None:
        """Cancel the call: it ends as cancelled here, and its workers are told."""
        if self._is_guest:
            self.refuse(fleet_results.cancelled(self.tool_name, effect_state="unknown"))
            return
        await asyncio.shield(self._take_back())

    async def status(self) -> CallStatus:
        """Return the call's state by the ledger, and by the call itself."""
        try:
            async with asyncio.timeout(PEEK_SECONDS):
                place = _PLACES[await self._ledger.state_of(self.call_id)]
        except (OSError, ResponseError):
            return UNKNOWN
        progress = None
        if place == "input_required":
            return CallStatus(place, None, await self.pending_input())
        if place in {"running", "retrying"}:
            with contextlib.suppress(OSError, ResponseError):
                content = await self._listener.peek(self._listener.keys.progress(self.call_id).encode())
                progress = await read_progress(self._listener.verifier, self.call_id, content)
        return CallStatus(place, progress)

    async def pending_input(self) -> PendingInput | None:
        """Return the call's present question; `None` if there is none, or if Redis does not answer."""
        with contextlib.suppress(OSError, ResponseError):
            async with asyncio.timeout(PEEK_SECONDS):
                return await self.answers.pending(self.call_id)
        return None

    def hearing(self, hear: Callable[[bytes], None]) -> AbstractContextManager[None]:
        """Call `hear` with each announcement of the call before it ends."""
        return self._listener.watches.watching(self._listener.keys.progress(self.call_id).encode(), hear)

    def progress(self, ending: "asyncio.Future[ToolResult]") -> AsyncGenerator[Progress]:
        """Implements `CallHandle.progress`, until `ending`: that of the follower."""
        return follow_progress(self._listener, self.call_id, ending)

    async def log(self, ending: "asyncio.Future[ToolResult]") -> AsyncGenerator[LogMessage]:
        """Implements `CallHandle.log`, until `ending`: that of the follower."""
        if self._log is not None:
            async with contextlib.aclosing(self._log.messages(ending)) as messages:
                async for message in messages:
                    yield message

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        turns, self._turns = self._turns, None
        if turns is not None and turns.is_awaited(caller_lane := (self._call.lane, self._call.user_id)):
            turns.free(caller_lane)

    def _end(self, result: ToolResult) -> None:
        self._over()
        if not self.ending.done():
            if result.artifacts and not self._shows_artifacts:
                result = result.model_copy(update={"artifacts": ()})
            if result.tool_name != self.tool_name:  # of a refused message, whose header may be forged
                result = result.model_copy(update={"tool_name": self.tool_name})
            # Nearly every result has its audit already.
            is_whole = result.success and result.audit.call_id
            self.ending.set_result(result if is_whole else audited(self.call_id, result))

    def _expire(self) -> None:
        if self._is_guest:
            self.refuse(fleet_results.unanswered(self._call))
        else:
            self._spawn(self._end_as(fleet_results.at_deadline(self._call)))
            self._spawn(self._revoke(self.call_id))  # it has no waiters any more

    def _take_back(self) -> asyncio.Task[None]:
        """Set the flag in the ledger, which holds for workers that start later, and send the order, which is faster for those that run."""
        self._spawn(self._revoke(self.call_id))
        seconds = min(_TAKE_BACK_SECONDS, max(self._call.deadline_at - fleet_clock.now(), PEEK_SECONDS))
        return self._spawn(self._end_as(fleet_results.taken_back(self._call), seconds=seconds))

    async def _end_as(self, ending: CallEnding, *, seconds: float = PEEK_SECONDS) -> None:
        """End the call in the ledger, and here with the result that the ledger has then; with ours if it does not answer."""
        try:
            async with self._ledger.window.place(seconds):
                stored = await self._in_ledger(self._ledger.end, ending)
            result = read_stored(stored, self.tool_name) if stored else ending.unknown
        except (OSError, ResponseError):
            result = ending.unknown
        self._listener.forget(self._expected)
        self._end(result)

    async def _in_ledger(self, end: Callable[..., Coroutine[Any, Any, S]], ending: CallEnding) -> S:
        """Send an end until it is answered. Each connection may lead to a Redis that has lost the record."""
        identity = self._listener.identity
        while True:
            await identity.known()
            try:
                return await end(self._call, ending, data_id=self._sure_data())
            except RedisConnectionClosed:
                raise
            except RedisConnectionLost:
                continue

    def _sure_data(self) -> str:
        """Return the id of the data in which Redis cannot have lost the call's record; "" if unknown.

        A later follower cannot know it alone.
        """
        if self._data_id is not None:
            return self._data_id
        identity = self._listener.identity
        return identity.data_id if not self._is_guest and identity.is_same_since(self._expected.since) else ""


def new_call_id() -> str:
    """Return an id that no other call has; also the id of its task in Celery."""
    return randomness.uuid4_text()


def audited(call_id: str, result: ToolResult) -> ToolResult:
    """Return the result with the known facts of the call: a worker's own audit and hint, or ours."""
    is_seen = bool(result.audit.call_id)
    if is_seen and (result.success or result.hint):
        return result
    audit = result.audit if is_seen else Audit(call_id=call_id, tool=result.tool_name, ts=fleet_clock.now())
    return result.model_copy(update={"audit": audit, "hint": result.hint or hint_for(result)})
