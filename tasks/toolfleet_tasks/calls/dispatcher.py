"""Publishes judged calls: once it is their user's turn, the broker is there, and a worker consumes their queue.

An agent that has only just connected cannot know which workers are about to start, and after a silence of Redis it is
unknown whether workers could reach it: the time counts from then on, at the earliest.

A message is published at least once, a call is run once. A message that surely was not published is published again,
and so is one that the broker has not confirmed: where calls travel by our own transport, the admission script
recognizes a call that was admitted before, and puts no second message into the queue. Elsewhere there may be two; the
ledger, by the call's id, lets one start, and the other costs one lookup. That is cheaper than ending a call that may be
on its way.
"""

import asyncio
import contextlib
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.config.run_file import why_not_applied
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import BegunBefore, BrokerUnavailable, NotPublished, PublishUnconfirmed
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import TraceContext, Tracing, Unrecorded, carry, drop
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.admission import AdmissionControl, Refusal, refused
from toolfleet_tasks.calls.begun_calls import BegunCalls
from toolfleet_tasks.calls.idempotency import Joined, KeyedCalls
from toolfleet_tasks.calls.pending_call import PendingCall
from toolfleet_tasks.fairness import CallerLane, WaitQueue
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.fleet_results import unknown_to_workers
from toolfleet_tasks.queues import queue_for
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.scripts import script
from toolfleet_tasks.tracing import going_on, sent, system_of
from toolfleet_tasks.transport.publisher import Outcome, Publisher

READ = script("consumers/read")
"""Returns for how many ms the queue has had no worker; -1 if it has one."""

log = get_logger(__name__)

_POLL_SECONDS = 0.25  # between two looks at a queue for which calls are held back
_SILENCE_SECONDS = 1.0  # after which Redis has been silent; as often workers note themselves
_ANSWER_SECONDS = 5.0  # for one look; then the calls are published, or find that Redis is away

# Calls that wait in one agent until they may be published; further ones are `busy`. Each takes about 15 kB there. The more
# wait, the fewer a single user may have among them: at most as many as there is room left, and half of all.
_MOST_WAITING = 50_000
# How long a call waits, within its deadline, for a Redis or RabbitMQ that is away, before it ends as `fleet_unavailable`: a
# restart or a fail-over is over by then, most often, and nobody's patience is. It is counted from the first call that finds
# it away: once that long is over, each further call ends within some three seconds, after one more try.
_PATIENCE_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0  # seconds, before a broker is tried again that is there and takes nothing

_ONE_TRY_SECONDS = 3.0  # by then it has been tried again
_Place = asyncio.Future[None]

_PUBLISH_SECONDS = 10.0  # from sending; a call that is not confirmed by then is published again
_DETACHED_SECONDS = 10.0  # to get a job's step into its queue; then the job is put off
_FIRST_REST, _LONGEST_REST = 0.2, 2.0  # seconds, before what was not confirmed is published again

Started = PendingCall | Joined | ToolResult
"""What becomes of a call: it is published, it has joined another, or it has ended already."""

_Tried = PendingCall | Refusal | NotPublished
"""The outcome of one try: the call is published, is refused, or surely is not published."""


class WorkerWait:
    """The calls of one agent that wait for a worker, over the `connection` to the Redis of the results.

    `spawn` runs something in the background. Belongs to the running loop.
    """

    def __init__(
        self,
        connection: PipelinedConnection,
        settings: Settings,
        known: KnownModules,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._known = known
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._trusted_since = self._loop.time()
        self._changes = dict[str, asyncio.Future[None]]()  # by queue
        self._is_closed = False
        connection.on_connect.append(self._trust_anew)

    def needs_worker(self, call: PublishedCall) -> bool:
        """Return whether the call may be refused for lack of a worker: not if workers are started when calls wait."""
        settings = self._settings
        if settings.unserved_seconds == math.inf or call.lane in settings.scale_from_zero_lanes:
            return False
        entry = self._known.entries.get(call.tool_name.partition(".")[0])
        return entry is None or not entry.scales_from_zero

    def is_in_vain(self, refusal: Refusal, *, asked_at: float) -> bool:
        """Return whether the call ends with its refusal: its queue does not exist, or has had no worker for long enough.

        `asked_at`: when the call was sent, by the loop's clock.
        """
        if refusal.kind != "unserved":
            return True
        if self._loop.time() - asked_at > _SILENCE_SECONDS:
            self._trust_anew()
        return self._is_over(refusal.seconds)

    def end_of(self, call: PublishedCall, refusal: Refusal) -> Refusal:
        """Return the result of a call that waited in vain: a module that the fleet's directory does not have gets no worker."""
        module, entries = call.tool_name.partition(".")[0], self._known.entries
        if refusal.kind != "unserved" or not entries or module in entries:
            return refusal
        why = why_not_applied(module, self._settings.redis_url)
        return Refusal("unserved", result=unknown_to_workers(call.tool_name, why))

    async def change(self, queue: str, *, until: float) -> None:
        """Return when another try is worthwhile, at the latest at `until` by the loop's clock.

        Raises `TimeoutError`, and `NotPublished` when the fleet is left.
        """
        if not self._is_closed:
            if queue not in self._changes:
                self._changes[queue] = self._loop.create_future()
                self._spawn(self._watch(queue))
            async with asyncio.timeout_at(until):
                await asyncio.shield(self._changes[queue])
        if self._is_closed:
            raise NotPublished("the fleet was left")

    def close(self) -> None:
        """End all waits."""
        self._is_closed = True
        for queue in list(self._changes):
            self._tell(queue)

    async def _watch(self, queue: str) -> None:
        """Check the queue until a worker has come, or none will. If Redis is away, others wait for it."""
        keys = self._settings.keys
        try:
            with contextlib.suppress(RedisConnectionLost, ResponseError, TimeoutError):
                seconds, command = 0.0, READ.command(notes=keys.consumers, queue=keys.queue(queue))
                while seconds >= 0 and not self._is_over(seconds):
                    await asyncio.sleep(_POLL_SECONDS)
                    async with asyncio.timeout(_ANSWER_SECONDS):
                        seconds = await self._connection.send(*command) / 1000
        finally:
            self._tell(queue)

    def _is_over(self, seconds: float) -> bool:
        return min(seconds, self._loop.time() - self._trusted_since) >= self._settings.unserved_seconds

    def _tell(self, queue: str) -> None:
        change = self._changes.pop(queue, None)
        if change is not None and not change.done():
            change.set_result(None)

    def _trust_anew(self) -> None:
        self._trusted_since = self._loop.time()


class PublishWindow:
    """A window of at most `size` publishes between sending and answer. Belongs to the running loop.

    Without it a burst is sent in one write, and an answer that waits behind thousands comes too late to be believed.
    """

    def __init__(self, size: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = size
        self._rows = OrderedDict[
            CallerLane, deque[_Place]
        ]()  # who has left is still among them; the first is served next

    def take(self) -> bool:
        """Take a place if one is free now. Then nothing waits: a place that is given back goes to the next waiter."""
        if self._free:
            self._free -= 1
            return True
        return False

    async def enter(self, caller_lane: CallerLane, *, until: float) -> None:
        """Take a place, at the latest at `until` by the loop's clock: first come, first served within a caller's lane, and the lanes in turn.

        Raises `TimeoutError`, and `NotPublished` when the fleet is left.
        """
        if self.take():
            return
        place: _Place = self._loop.create_future()
        self._rows.setdefault(caller_lane, deque()).append(place)
        try:
            async with asyncio.timeout_at(until):
                await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.leave()  # it was ours just now
            place.cancel()
            raise

    def leave(self) -> None:
        """Give a place back, or pass it to the next waiter."""
        while self._rows:
            caller_lane, row = self._rows.popitem(last=False)
            while row:
                place = row.popleft()
                if not place.done():
                    if row:
                        self._rows[caller_lane] = row
                    place.set_result(None)
                    return
        self._free += 1

    def close(self) -> None:
        """Tell all waiters that the fleet was left."""
        rows, self._rows = self._rows, OrderedDict()
        for row in rows.values():
            for place in row:
                if not place.done():
                    place.set_exception(NotPublished("the fleet was left"))


@dataclass(slots=True)
class WaitingCalls:
    """The number of calls that wait in an agent, at most `limit`, by caller."""

    limit: int
    total: int = 0
    _of: Counter[CallerLane] = field(default_factory=Counter)

    def enter(self, caller_lane: CallerLane) -> bool:
        """Count one more call, and return whether it may wait.

        A user has at most as many as there is room left, so that others always find some.
        """
        if self._of[caller_lane] >= self.limit - self.total:
            return False
        self._of[caller_lane] += 1
        self.total += 1
        return True

    def leave(self, caller_lane: CallerLane) -> None:
        """Count one call less."""
        self.total -= 1
        self._of[caller_lane] -= 1
        if not self._of[caller_lane]:
            del self._of[caller_lane]


class Backpressure:
    """The conditions that the calls of one agent wait for. Belongs to the running loop."""

    def __init__(self, publisher: Publisher, wait_queue: WaitQueue) -> None:
        self.wait_queue = wait_queue
        self.window = PublishWindow(publisher.most_in_flight)
        self.crowd = WaitingCalls(_MOST_WAITING)
        self.patience_seconds = _PATIENCE_SECONDS
        self.loop = asyncio.get_running_loop()
        self._publisher = publisher
        self._pause = 0.0
        self._paused_until = 0.0
        self._away_since: float | None = None
        self.has_failed = False
        """Whether the broker has been away, or has taken nothing, since it answered last."""

    def close(self) -> None:
        """Tell all waiting calls that the fleet was left."""
        self.wait_queue.close()
        self.window.close()

    @property
    def is_there(self) -> bool:
        """Return whether the broker can be reached, as far as is known."""
        return self._publisher.is_ready

    @property
    def is_open(self) -> bool:
        """Return whether the broker is worth an attempt now."""
        return self._publisher.is_ready and not (self._pause and self.loop.time() < self._paused_until)

    def takes_at_once(self, caller_lane: CallerLane, *, waits: bool) -> bool:
        """Take a place in the window for a call that nothing holds back; return whether it has one.

        `waits`: it would wait for its turn behind others of its caller's lane.
        """
        if self._pause or (waits and self.wait_queue.is_awaited(caller_lane)):
            return False
        return self._publisher.is_ready and self.window.take()

    async def opened(self) -> None:
        """Wait until the broker is worth an attempt. Has no deadline. Raises `NotPublished` when the fleet is left."""
        while not self.is_open:
            await self._publisher.ready()
            rest = self._paused_until - self.loop.time()
            if self._pause and rest > 0:
                await asyncio.sleep(rest)

    def succeeded(self) -> None:
        """Note that the broker has answered."""
        self._pause, self._away_since, self.has_failed = 0.0, None, False

    def patient_until(self) -> float:
        """Return until when a call waits for the broker. The time is counted from the first call that found it away.

        Calls that come when it has been away for longer than that wait for one more try only.
        """
        now, self.has_failed = self.loop.time(), True
        self._away_since = now if self._away_since is None else self._away_since
        return max(self._away_since + self.patience_seconds, now + min(self.patience_seconds, _ONE_TRY_SECONDS))

    def failed(self) -> None:
        """Pause: the broker takes nothing, so this agent waits a growing time before the next attempt."""
        if self.is_open:  # else others have said so
            self.has_failed = True
            self._pause = min(self._pause * 2 or _FIRST_PAUSE, _LONGEST_PAUSE)
            self._paused_until = self.loop.time() + self._pause * randomness.uniform(
                0.75, 1.25
            )  # agents must not ask in step


class Hold:
    """The wait of one call, from before its first try until `end`; `until` is its deadline by the loop's clock.

    `waits`: for its turn in its user's limit; else it is told that there is none. `is_sent`: it may have been published
    already, so that nothing but its deadline ends its waiting. `ticket`: its place in the order of arrival, if it has one.
    """

    __slots__ = ("_away", "_back", "_gives_up_at", "_had_turn", "_has_turn", "_is_counted", "_is_sent", "_needs_turn", "_ticket", "caller_lane", "until", "waits")  # fmt: skip

    def __init__(
        self,
        back: Backpressure,
        caller_lane: CallerLane,
        *,
        until: float,
        waits: bool,
        is_sent: bool = False,
        ticket: int | None = None,
    ) -> None:
        self.caller_lane = caller_lane
        self.until = until
        self._back = back
        self.waits = waits
        self._is_sent = is_sent
        self._ticket = back.wait_queue.ticket() if ticket is None else ticket
        self._needs_turn = self._has_turn = self._had_turn = self._is_counted = False
        self._away: NotPublished | None = None
        self._gives_up_at = 0.0

    async def admitted(self) -> Refusal | None:
        """Wait for a place in the window, which `leave` gives back; return the refusal if too many wait already.

        Raises `TimeoutError` at the deadline, and `NotPublished` where the broker was away for too long, or the fleet is left.
        """
        back = self._back
        if self._may_go() and back.is_open and back.window.take():
            return None
        if (refusal := self.crowded()) is not None:
            return refusal
        while True:
            if not self._may_go():
                await back.wait_queue.wait(self.caller_lane, self._ticket, until=self.until)
                self._has_turn = self._had_turn = True
            await self._broker()
            await back.window.enter(self.caller_lane, until=self.until)
            if self._may_go() and back.is_open:
                return None
            back.window.leave()

    def crowded(self) -> Refusal | None:
        """Have the call wait in its agent; return the refusal if too many do already."""
        if not (self._is_counted or self._is_sent):
            if not self._back.crowd.enter(self.caller_lane):
                return Refusal("crowd", count=self._back.crowd.total)
            self._is_counted = True
        return None

    def leave(self) -> None:
        """End a try, and give its place back."""
        self._back.window.leave()

    def awaits_turn(self) -> bool:
        """Return whether the call waits for its turn after its limit has refused it."""
        self._needs_turn, self._has_turn, self._gives_up_at = True, False, 0.0
        return self.waits

    def tries_again(self, error: NotPublished) -> bool:
        """Return whether a failure that passes is worth another attempt within the call's time."""
        if not (isinstance(error, BrokerUnavailable) and error.passes):
            return False
        self._away = error
        if self._back.is_there:  # it has answered, and takes nothing
            self._gives_up_at = self._gives_up_at or self._patient_until()
        self._back.failed()
        return self._back.loop.time() < (self._gives_up_at or self.until)

    def end(self) -> None:
        """End the wait, whatever the outcome."""
        if self._is_counted:
            self._back.crowd.leave(self.caller_lane)
        if self._had_turn:
            self._back.wait_queue.free(self.caller_lane)  # others may have room, too

    def _may_go(self) -> bool:
        return self._has_turn or not (
            self.waits and (self._needs_turn or self._back.wait_queue.is_awaited(self.caller_lane))
        )

    async def _broker(self) -> None:
        """Wait for the broker, with what patience is left; with that of its first try for one that was there, and took nothing."""
        back = self._back
        if back.is_open:
            return
        try:
            async with asyncio.timeout_at(self._gives_up_at or self._patient_until()):
                await back.opened()
        except TimeoutError:
            raise self._away or BrokerUnavailable("it does not answer", passes=True) from None

    def _patient_until(self) -> float:
        return self.until if self._is_sent else min(self._back.patient_until(), self.until)


class Dispatcher:
    """Publishes the calls of one session.

    `follow` listens for the end of a call; `spawn` runs something in the background.

    `begun` writes what another process needs to continue a call, in the same tick. Belongs to the running loop.
    """

    def __init__(
        self,
        publisher: Publisher,
        admission: AdmissionControl,
        keyed_calls: KeyedCalls,
        begun: BegunCalls,
        workers: WorkerWait,
        settings: Settings,
        *,
        follow: Callable[..., PendingCall],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        tracing: Tracing | None = None,
    ) -> None:
        self._publisher = publisher
        self._begun = begun
        self._tracing, self._system = tracing, system_of(settings.broker)
        self._admission = admission
        self._keyed_calls = keyed_calls
        self._workers = workers
        self._follow = follow
        self._spawn = spawn
        self._wait_queue = WaitQueue()
        self._back = Backpressure(publisher, self._wait_queue)
        self._loop = asyncio.get_running_loop()

    def post(
        self, call: PublishedCall, *, waits: bool, waits_for_worker: bool = False, until_end: bool = False
    ) -> Coroutine[Any, Any, Started]:
        """Publish a call, or end it.

        A call over its caller's limit waits for its turn until its deadline, if it `waits`.

        While no worker consumes its queue it is held back for a while; one that `waits_for_worker` waits in the queue.

        `until_end`: the caller only waits for the call's end, so this may return when that has come.
        """
        needs_worker = not waits_for_worker and self._workers.needs_worker(call)
        until_end = until_end and self._tracing is None and call.idempotency_key is None
        posting = self._post(call, waits=waits, needs_worker=needs_worker, until_end=until_end)
        return posting if self._tracing is None else self._traced(call, posting, self._tracing)

    async def _traced(self, call: PublishedCall, posting: Awaitable[Started], tracing: Tracing) -> Started:
        drawn = tracing.draw_root()
        if type(drawn) is not Unrecorded:
            return await sent(tracing, call, self._system, posting, drawn)
        token = carry(drawn)  # as `sent` would: nearly every call comes here
        try:
            return await posting
        finally:
            drop(token)

    async def _post(self, call: PublishedCall, *, waits: bool, needs_worker: bool, until_end: bool) -> Started:
        """Publish a call; nearly every call is published at its first try, before anything is prepared for waiting."""
        started: PendingCall | Refusal | ToolResult
        ticket, asked_at = self._wait_queue.ticket(), self._loop.time()
        until = asked_at + call.deadline_at - fleet_clock.now()
        tried: _Tried | None = None
        try:
            if self._back.takes_at_once((call.lane, call.user_id), waits=waits):
                tried = await self._try(call, until, waits=waits, needs_worker=needs_worker, until_end=until_end)
                if isinstance(tried, PendingCall):
                    return tried
            hold = Hold(self._back, (call.lane, call.user_id), until=until, waits=waits, ticket=ticket)
            started = await self._wait(call, hold, tried, asked_at, needs_worker=needs_worker)
        except TimeoutError:
            started = fleet_results.expired(call.tool_name)
        except NotPublished as exc:
            started = _unpublished(call, exc)
        except BaseException:
            self._keyed_calls.give_up(call)
            raise
        if isinstance(started, PendingCall):
            return started
        result = refused(call.tool_name, started) if isinstance(started, Refusal) else started
        self._keyed_calls.take_back(call, result)
        if isinstance(started, Refusal) and started.kind == "joined":
            return self._keyed_calls.join(call, started.call_id)
        return result

    async def detach(
        self, call: PublishedCall, *, most_waiting: int, again: bool = False, origin: TraceContext | None = None
    ) -> ToolResult | Refusal | None:
        """Publish a call without waiting for its end, unless `most_waiting` calls wait for its module; return its result if it is in no queue.

        Or the refusal that names the call that its idempotency key stands for. Raises `PublishUnconfirmed`: it may be
        in its queue, or was started before (`BegunBefore`). `again`: it may have been published before. `origin`: its
        place in a trace, if not here and now.
        """
        tracing, detaching = self._tracing, self._detach(call, most_waiting=most_waiting, again=again)
        with going_on(tracing, origin):
            if tracing is None:
                return await detaching
            return await sent(tracing, call, self._system, detaching, tracing.draw_root())

    async def _detach(self, call: PublishedCall, *, most_waiting: int, again: bool) -> ToolResult | Refusal | None:
        hold = self._hold(call, waits=False, seconds=_DETACHED_SECONDS)
        limit = min(self._admission.backlog_limit, most_waiting)
        try:
            refusal = await hold.admitted()
            if refusal is None:
                try:
                    refusal = await self._publish(call, limit=limit, again=again)
                finally:
                    hold.leave()
        except TimeoutError:
            refusal = Refusal("crowd", count=self._back.crowd.total)
        except NotPublished as exc:
            return _unpublished(call, exc)
        finally:
            hold.end()
        return refusal if refusal is None or refusal.kind == "joined" else refused(call.tool_name, refusal)

    def close(self) -> None:
        """Tell all calls that wait to be published that the fleet was left."""
        self._back.close()
        self._workers.close()

    def _hold(self, call: PublishedCall, *, waits: bool, seconds: float | None = None, is_sent: bool = False) -> Hold:
        left = call.deadline_at - fleet_clock.now()
        left = left if seconds is None else min(left, seconds)
        until = self._loop.time() + left
        return Hold(self._back, (call.lane, call.user_id), until=until, waits=waits, is_sent=is_sent)

    async def _wait(
        self, call: PublishedCall, hold: Hold, tried: _Tried | None, asked_at: float, *, needs_worker: bool
    ) -> PendingCall | Refusal:
        """Try again until the call is published, or surely not. Raises `NotPublished`, and `TimeoutError` at its deadline.

        `tried`: the outcome of its first try at `asked_at`, if it had one.
        """
        try:
            while not isinstance(tried, PendingCall):
                if isinstance(tried, NotPublished) and not hold.tries_again(tried):
                    raise tried
                if isinstance(tried, Refusal) and not (tried.kind == "share" and hold.awaits_turn()):
                    is_in_vain = self._workers.is_in_vain(tried, asked_at=asked_at)
                    refusal = tried if is_in_vain else hold.crowded()
                    if refusal is not None:
                        return self._workers.end_of(call, refusal)
                    await self._workers.change(queue_for(call), until=hold.until)
                refused_before, asked_at = await hold.admitted(), self._loop.time()
                tried = refused_before or await self._try(call, hold.until, waits=hold.waits, needs_worker=needs_worker)
        finally:
            hold.end()
        return tried

    async def _try(
        self, call: PublishedCall, until: float, *, waits: bool, needs_worker: bool, until_end: bool = False
    ) -> _Tried:
        """Listen for the call's end, and publish it, with a place in the window, which is given back.

        `until`: its deadline, by the loop's clock. `until_end`: return a published call when it has ended.
        """
        is_own = self._begun.is_own(call.call_id)
        follow = self._follow(call, had=self._begun.had) if is_own else self._follow(call)
        if is_own:
            self._begun.write(call)
        if call.idempotency_key is not None:
            self._keyed_calls.offer(follow)  # a repeat may hear of it before we do
        answered = partial(self._answered, follow, call, until, waits)
        following = (follow.ending, answered) if until_end else None
        outcome: Outcome
        try:
            limit = self._admission.backlog_limit
            outcome = await self._publisher.publish(
                call, seconds=_PUBLISH_SECONDS, limit=limit, needs_worker=needs_worker, follow=following
            )
        except (NotPublished, PublishUnconfirmed) as exc:
            outcome = exc
        except BaseException:
            if not follow.is_answered:
                self._back.window.leave()
            follow.give_up()  # it may have got into its queue just now
            raise
        if not follow.is_answered:
            answered(outcome)
        return outcome if isinstance(outcome, Refusal | NotPublished) else follow

    def _answered(self, follow: PendingCall, call: PublishedCall, until: float, waits: bool, outcome: Outcome) -> bool:  # noqa: FBT001 - all by position
        """Note the outcome of a try and give its place back. Return whether the call may be in its queue."""
        follow.is_answered = True
        self._back.window.leave()
        if self._back.has_failed and not isinstance(outcome, Exception):
            self._back.succeeded()
        if outcome is None:
            follow.is_sent = True
        elif not isinstance(outcome, PublishUnconfirmed):
            follow.unpublished()
            return False
        elif not isinstance(outcome, BegunBefore):  # else its end will come
            self._publish_again(call, follow, outcome, waits=waits)
        follow.published(call.deadline_at, self._wait_queue, until=until)
        return True

    async def _publish(self, call: PublishedCall, *, limit: int, again: bool = False) -> Refusal | None:
        """Put the call into its queue, without following it; return why it is not in it, or `None`. Raises as `Publisher.publish` does."""
        self._begun.write(call)
        refusal = await self._publisher.publish(call, seconds=_PUBLISH_SECONDS, limit=limit, again=again)
        if self._back.has_failed:
            self._back.succeeded()
        return refusal

    def _publish_again(
        self, call: PublishedCall, follow: PendingCall, error: PublishUnconfirmed, *, waits: bool
    ) -> None:
        """Keep publishing a call that may already be in its queue.

        Its end is listened for until its deadline, as that of any other.
        """
        log.info("publish_not_confirmed", call_id=call.call_id, tool=call.tool_name, error=str(error))
        follow.unconfirmed()
        insisting = self._spawn(self._insist(call, follow, waits=waits))
        follow.ending.add_done_callback(lambda _: insisting.cancel())

    async def _insist(self, call: PublishedCall, follow: PendingCall, *, waits: bool) -> None:
        """Publish a call again until it is confirmed, refused, or late."""
        hold, rest = self._hold(call, waits=waits, is_sent=True), _FIRST_REST
        try:
            while not await self._is_settled(call, follow, hold):
                await asyncio.sleep(rest * randomness.uniform(0.5, 1))  # spreads load
                rest = min(rest * 2, _LONGEST_REST)
            follow.confirmed()
        except (TimeoutError, NotPublished):  # its deadline ends it, or the fleet was left
            return
        finally:
            hold.end()

    async def _is_settled(self, call: PublishedCall, follow: PendingCall, hold: Hold) -> bool:
        """Publish a call once more; return whether nothing more is to be done about that.

        One that is refused now has never been admitted: it ends so, unless a worker has started it all the same. If its
        idempotency key stands for another call, it ends as that one.
        """
        await hold.admitted()
        try:
            refusal = await self._publish(call, limit=self._admission.backlog_limit, again=True)
        except BegunBefore:
            return True
        except (NotPublished, PublishUnconfirmed):
            return False
        finally:
            hold.leave()
        if refusal is None:
            follow.is_sent = True
            return True
        if refusal.kind == "share" and hold.awaits_turn():
            return False
        if refusal.kind == "joined":
            follow.refuse(await self._keyed_calls.join(call, refusal.call_id).ending)
        else:
            await follow.withdraw(refused(call.tool_name, refusal))
        return True


def _unpublished(call: PublishedCall, error: NotPublished) -> ToolResult:
    if isinstance(error, BrokerUnavailable):
        return fleet_results.fleet_unavailable(call.tool_name, str(error))
    if fleet_clock.now() >= call.deadline_at:
        return fleet_results.expired(call.tool_name)
    return fleet_results.not_published(call.tool_name, str(error) or "Redis does not answer")
