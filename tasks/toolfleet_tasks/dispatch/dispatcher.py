"""Publishes judged calls: a listener for the end is set up, and the call is published once it may be.

A message is published at least once, a call is run once. A message that surely was not published is published again,
and so is one that the broker has not confirmed: where calls travel by our own transport, the admission script
recognizes a call that was admitted before, and puts no second message into the queue. Elsewhere there may be two; the
ledger, by the call's id, lets one start, and the other costs one lookup. That is cheaper than ending a call that may be
on its way.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.errors import BegunBefore, BrokerUnavailable, NotPublished, PublishUnconfirmed
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import fleet_clock
from toolfleet_registry.tracing.port import TraceContext, Tracing, Unrecorded, carry, drop
from toolfleet_tasks.admission import AdmissionControl, Refusal, refused
from toolfleet_tasks.calls.idempotency import Joined, KeyedCalls
from toolfleet_tasks.calls.pending_call import PendingCall
from toolfleet_tasks.dispatch.backpressure import Backpressure, Hold
from toolfleet_tasks.dispatch.worker_wait import WorkerWait
from toolfleet_tasks.fairness import WaitQueue
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.publish.publisher import Publisher
from toolfleet_tasks.queues import queue_for
from toolfleet_tasks.tracing.sending import going_on, sent, system_of

log = get_logger(__name__)

_PUBLISH_SECONDS = 10.0  # from sending; a call that is not confirmed by then is published again
_DETACHED_SECONDS = 10.0  # to get a job's step into its queue; then the job is put off
_FIRST_REST, _LONGEST_REST = 0.2, 2.0  # seconds, before what was not confirmed is published again

Started = PendingCall | Joined | ToolResult
"""What becomes of a call: it is published, it has joined another, or it has ended already."""


class Dispatcher:
    """Gets calls under way. `follow` listens for the end of a call of ours; `spawn` runs something in the background.

    `before` is told of each call when it is about to be published, in the same tick. Belongs to the running loop.
    """

    def __init__(  # noqa: PLR0913 - what it needs of its session
        self,
        publisher: Publisher,
        admission: AdmissionControl,
        keyed_calls: KeyedCalls,
        workers: WorkerWait,
        settings: Settings,
        *,
        follow: Callable[[PublishedCall], PendingCall],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        before: Callable[[PublishedCall], None],
        tracing: Tracing | None = None,
    ) -> None:
        self._publisher = publisher
        self._before = before
        self._tracing, self._system = tracing, system_of(settings.broker)
        self._admission = admission
        self._keyed_calls = keyed_calls
        self._workers = workers
        self._follow = follow
        self._spawn = spawn
        self._wait_queue = WaitQueue()
        self._back = Backpressure(publisher, self._wait_queue)
        self._loop = asyncio.get_running_loop()

    async def post(self, call: PublishedCall, *, waits: bool, waits_for_worker: bool = False) -> Started:
        """Publish a call, or end it. Over its caller's limit it waits for its turn, if it `waits`, until its deadline.

        While no worker consumes its queue it is held back for a while; one that `waits_for_worker` waits in the queue.
        """
        needs_worker = not waits_for_worker and self._workers.needs_worker(call)
        posting = self._post(call, waits=waits, needs_worker=needs_worker)
        if self._tracing is None:
            return await posting
        drawn = self._tracing.draw_root()
        if type(drawn) is not Unrecorded:
            return await sent(self._tracing, call, self._system, posting, drawn)
        token = carry(drawn)  # as `sent` would: nearly every call comes here
        try:
            return await posting
        finally:
            drop(token)

    async def _post(self, call: PublishedCall, *, waits: bool, needs_worker: bool) -> Started:
        hold = self._hold(call, waits=waits)
        started: PendingCall | Refusal | ToolResult
        try:
            started = await self._start(call, hold, needs_worker=needs_worker)
        except TimeoutError:
            started = fleet_results.expired(call.tool_name)
        except NotPublished as exc:
            started = _unpublished(call, exc)
        except BaseException:
            self._keyed_calls.give_up(call)
            raise
        finally:
            hold.end()
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
        limit = min(self._admission.backlog_limit(call), most_waiting)
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

    async def _start(self, call: PublishedCall, hold: Hold, *, needs_worker: bool) -> PendingCall | Refusal:
        """Try until the call is published, or surely not. Raises `NotPublished`, and `TimeoutError` at its deadline."""
        started: PendingCall | Refusal | None = None
        while started is None:
            refused_before, asked_at = await hold.admitted(), self._loop.time()
            started = refused_before or await self._try(call, hold, needs_worker=needs_worker)
            if isinstance(started, Refusal) and not self._workers.is_in_vain(started, asked_at=asked_at):
                started = hold.crowded()
                if started is None:
                    await self._workers.change(queue_for(call), until=hold.until)
        return self._workers.end_of(call, started) if isinstance(started, Refusal) else started

    async def _try(self, call: PublishedCall, hold: Hold, *, needs_worker: bool) -> PendingCall | Refusal | None:
        """Listen for the call's end, and publish it; `None` if that has surely failed, and is worth another try.

        Raises `NotPublished`.
        """
        follow, refusal = self._follow(call), None
        if call.idempotency_key is not None:
            self._keyed_calls.offer(follow)  # a repeat may hear of it before we do
        try:
            limit = self._admission.backlog_limit(call)
            refusal = await self._publish(call, limit=limit, needs_worker=needs_worker)
        except BegunBefore:
            pass  # its end will come
        except PublishUnconfirmed as exc:
            self._publish_again(call, follow, hold, exc)
        except NotPublished as exc:
            follow.unpublished()
            if not hold.tries_again(exc):
                raise
            return None
        except BaseException:
            follow.give_up()  # it may have got into its queue just now
            raise
        finally:
            hold.leave()
        if refusal is not None:
            follow.unpublished()
            return None if refusal.kind == "share" and hold.awaits_turn() else refusal
        follow.published(call.deadline_at, self._wait_queue)
        return follow

    async def _publish(
        self, call: PublishedCall, *, limit: int, needs_worker: bool = False, again: bool = False
    ) -> Refusal | None:
        """Get the call into its queue, from now on; `None`, or why it is not in it. Raises as `Publisher.publish` does."""
        seconds = min(_PUBLISH_SECONDS, call.deadline_at - fleet_clock.now())
        self._before(call)
        refusal = await self._publisher.publish(
            call, seconds=seconds, limit=limit, needs_worker=needs_worker, again=again
        )
        self._back.succeeded()
        return refusal

    def _publish_again(self, call: PublishedCall, follow: PendingCall, hold: Hold, error: PublishUnconfirmed) -> None:
        """Keep publishing a call that may or may not be in its queue.

        Its end is listened for until its deadline, as that of any other.
        """
        log.info("publish_not_confirmed", call_id=call.call_id, tool=call.tool_name, error=str(error))
        follow.unconfirmed()
        insisting = self._spawn(self._insist(call, follow, waits=hold.waits))
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
            refusal = await self._publish(call, limit=self._admission.backlog_limit(call), again=True)
        except BegunBefore:
            return True
        except (NotPublished, PublishUnconfirmed):
            return False
        finally:
            hold.leave()
        if refusal is None:
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
