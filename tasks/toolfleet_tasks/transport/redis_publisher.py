"""Publishes calls over a pipelined connection, without kombu: those admitted in one tick of the loop as one script.

In a worker, whose publisher `worker_publisher` chooses, it publishes the fleet's own tasks as well.
"""

import asyncio
import contextlib
import math
import operator
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.names import PROGRAMS
from toolfleet_registry.errors import BrokerUnavailable, NotPublished, PublishUnconfirmed
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import Parameters, Script
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import SigningSettings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.shared_timers import SharedTimer, SharedTimers, shared_timers
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.admission import ADMIT, ADMIT_MANY, AdmissionControl, Refusal, refusal_in
from toolfleet_tasks.messages.envelope import (
    call_message,
    control_message,
    revocation_message,
    revocation_topic,
    sender,
    time_after,
)
from toolfleet_tasks.messages.ids import EVALUATE, RESUME_PROGRAMS, is_program
from toolfleet_tasks.messages.signing import Seal, seal_of
from toolfleet_tasks.presence import ApartReaders
from toolfleet_tasks.queues import CONTROL, queue_for, queue_of
from toolfleet_tasks.redis_connection import (
    Part,
    PipelinedConnection,
    RedisConnectionLost,
    ReplyWaiter,
    is_one_of,
    is_unknown_script,
    unavailable,
)
from toolfleet_tasks.transport.publisher import (
    CONTROL_SECONDS,
    REPUBLISH_SECONDS,
    Delivered,
    Following,
    Outcome,
    Publisher,
)
from toolfleet_tasks.transport.scripts import PUBLISH
from toolfleet_tasks.worker_runtime import WorkerRuntime

log = get_logger(__name__)

_MOST = 64  # calls: Redis does nothing else for that long, some 0.3 ms

_LARGEST = 65_536  # characters of a message: larger ones would add up to what Redis takes for too large a command

_Command = tuple[Part, ...]
_KEYS = 8  # of a call without an idempotency key

_REVOKE_SECONDS = 10.0  # for the connection to come back, and Redis to answer


class AdmissionBatcher:
    """Collects the calls of one tick, by queue and limits. Belongs to the connection's event loop.

    A batch admits all of its calls, or none: then each is sent alone, unless its caller has gone.
    """

    def __init__(self, connection: PipelinedConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._timers = shared_timers(loop)
        self._open: dict[_Command, _Batch] = {}

    def send(self, parameters: _Command, give_up_at: float, waiter: ReplyWaiter, script: Script = ADMIT) -> None:
        """Send the parameters of `script`; the waiter gets its reply, or `TimeoutError` at `give_up_at`."""
        shared: _Command | None = None
        if script is ADMIT and parameters[0] == _KEYS:
            message, keep_ms, marks, bound = _alone(parameters)
            if not (keep_ms or marks) and bound > 0 and 0 < len(message) <= _LARGEST:
                shared = _shared(parameters)
        batch = None if shared is None else self._open.get(shared)
        is_new = batch is None or len(batch) == _MOST
        if batch is None or is_new:
            batch = _Batch(self._timers, self._answer, script, shared)
            if shared is not None:
                self._open[shared] = batch
        batch.append((parameters, waiter, give_up_at))
        if give_up_at < batch.ends_at:
            batch.end_at(give_up_at)
        if is_new:
            self._connection.send_for(batch, partial(self._close, batch))

    def _close(self, batch: "_Batch") -> _Command:
        """Return the command, as it leaves.

        A caller that has gone meanwhile may be in it, as one whose command had just left.
        """
        self._forget(batch)
        return ("EVALSHA", batch.script.digest, *batch.parameters)

    def _forget(self, batch: "_Batch") -> None:
        if batch.shared is not None and self._open.get(batch.shared) is batch:
            del self._open[batch.shared]

    def _answer(self, batch: "_Batch", answer: Any, error: Exception | None) -> None:
        self._forget(batch)  # the connection was lost before it left
        batch.stop()
        if isinstance(error, ResponseError) and is_unknown_script(error):
            if again := batch.of([each for each in batch if not each[1].done()]):
                again.end_next()
                self._connection.send_for(again, lambda: ("EVAL", again.script.text, *again.parameters))
        elif len(batch) > 1 and (isinstance(error, ResponseError) or (error is None and answer is None)):
            for each in batch:  # it did nothing: each is sent alone, but those of callers that have gone
                if not each[1].done():
                    alone = batch.of([each])
                    alone.end_next()
                    self._connection.send_for(alone, partial(self._close, alone))
        else:
            for _, waiter, _ in batch:
                if waiter.done():  # its caller has gone
                    continue
                if error is None:
                    waiter.set_result(answer)
                else:
                    waiter.set_exception(error)


class _Batch(list[tuple[_Command, ReplyWaiter, float]]):
    """The parameters of each call, who waits for its reply, and until when by the loop's clock.

    It gets the reply itself, and hands it to `answer` in the same turn of the loop. One timer stands for all of them:
    those of one tick end at nearly the same time. `script` is that of a call that is alone in it.
    """

    def __init__(
        self,
        timers: SharedTimers,
        answer: "Callable[[_Batch, Any, Exception | None], None]",
        script: Script,
        shared: _Command | None,
        calls: "Iterable[tuple[_Command, ReplyWaiter, float]]" = (),
    ) -> None:
        super().__init__(calls)
        self.shared = shared
        self._timers, self._answer, self._alone = timers, answer, script
        self._timer: SharedTimer | None = None
        self.ends_at = math.inf
        """When the first wait ends."""

    def of(self, calls: "Iterable[tuple[_Command, ReplyWaiter, float]]") -> "_Batch":
        """Return a batch of some of its calls, which is sent again, and which no other joins."""
        return _Batch(self._timers, self._answer, self._alone, self.shared, calls)

    @property
    def script(self) -> Script:
        """Return the script that admits its calls."""
        return self._alone if len(self) == 1 else ADMIT_MANY

    @property
    def parameters(self) -> Parameters:
        """Return the parameters of `script`."""
        return self[0][0] if len(self) == 1 or self.shared is None else _together(self, self.shared)

    def done(self) -> bool:
        """Return False: any of its callers may still wait."""
        return False

    def set_result(self, answer: Any) -> None:
        """Take the reply."""
        self._answer(self, answer, None)

    def set_exception(self, error: Exception) -> None:
        """Take the refusal, or the loss of the connection."""
        self._answer(self, None, error)

    def end_at(self, when: float) -> None:
        """Have the first wait end at this time."""
        if self._timer is not None:
            self._timer.cancel()
        self.ends_at, self._timer = when, SharedTimer(self._timers, when, self._expire, ())

    def end_next(self) -> None:
        """Have the first of the waits that go on end at its time."""
        left = [give_up_at for _, waiter, give_up_at in self if not waiter.done()]
        if left:
            self.end_at(min(left))

    def stop(self) -> None:
        """End no wait any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        for _, waiter, give_up_at in self:
            if give_up_at <= self.ends_at and not waiter.done():
                waiter.set_exception(TimeoutError())
        self.end_next()


class _Publishing:
    """Gets Redis's reply about one call, and tells what it means, in the same turn of the loop.

    `times`: how often calls had been sent for workers of any version when this one was sent apart; `None`: it was not.
    """

    __slots__ = ("_admission", "_call", "_is_answered", "_publisher", "_tell", "_times", "_waited")

    def __init__(
        self,
        publisher: "RedisPublisher",
        admission: AdmissionControl,
        call: PublishedCall,
        times: int | None,
        waited: "asyncio.Future[Any]",
        tell: Callable[[Outcome], bool] | None,
    ) -> None:
        self._publisher, self._admission, self._call, self._times = publisher, admission, call, times
        self._waited, self._tell, self._is_answered = waited, tell, False

    def done(self) -> bool:
        """Implements `ReplyWaiter.done`."""
        return self._is_answered or self._waited.done()

    def set_result(self, reply: Any) -> None:
        """Implements `ReplyWaiter.set_result`."""
        outcome: Outcome
        try:
            outcome = self._admission.parse_reply(self._call, reply)
            if outcome is None and self._tell is not None and self._publisher.is_outdated(self._times):
                self._publisher.publish_once_more(self._call)
        except (NotPublished, PublishUnconfirmed) as exc:
            outcome = exc
        except Exception as exc:  # noqa: BLE001 - a defect of ours: it may be in its queue
            outcome = PublishUnconfirmed(repr(exc))
        self._end(outcome)

    def set_exception(self, error: Exception) -> None:
        """Implements `ReplyWaiter.set_exception`."""
        outcome: Outcome
        try:
            outcome = _refused(error) if isinstance(error, ResponseError) else _not_answered(error)
        except Exception as exc:  # noqa: BLE001 - a program's logger, say; the others of the batch are to hear of theirs
            outcome = PublishUnconfirmed(repr(exc))
        self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        self._is_answered = True
        try:
            if self._tell is not None and self._tell(outcome):
                return
        except Exception as exc:  # noqa: BLE001 - its caller is to hear of it, and not the connection
            outcome = exc
        if self._waited.done():
            return
        if isinstance(outcome, Exception):
            self._waited.set_exception(outcome)
        else:
            self._waited.set_result(outcome)


# The parameters of `ADMIT` for a call without an idempotency key, in their order.
_ASKED = (
    *("number", "queue", "notify_key", "breaker", "caller_limit", "stored", "slots", "record", "queue_states"),
    *("call_id", "deadline", "message", "limit", "bound", "keep_ms", "intent_seconds", "intention"),
    *("backlog_bytes", "stored_bytes_most", "marks"),
)


def _picking(*names: str) -> Callable[[_Command], tuple[Any, ...]]:
    return operator.itemgetter(*map(_ASKED.index, names))


# What calls of one batch must share, and what tells whether a call must be judged alone.
_shared = _picking("queue", "notify_key", "breaker", "queue_states", "limit", "bound", "backlog_bytes")
_alone = _picking("message", "keep_ms", "marks", "bound")
_known = _picking("record", "caller_limit", "stored")
_sent = _picking("call_id", "deadline", "message")


def _together(batch: _Batch, shared: _Command) -> Parameters:
    queue, notify_key, breaker, queue_states, limit, bound, backlog_bytes = shared
    sent = [_sent(parameters) for parameters, _, _ in batch]
    return ADMIT_MANY.parameters(
        queue=queue,
        notify_key=notify_key,
        breaker=breaker,
        queue_states=queue_states,
        known=[_known(parameters) for parameters, _, _ in batch],
        limit=limit,
        bound=bound,
        backlog_bytes=backlog_bytes,
        calls=[(call_id, math.ceil(float(deadline)), message) for call_id, deadline, message in sent],
    )


class RedisPublisher:
    """Implements `Publisher`: puts calls into their queues, each with one script, or several of one tick with it.

    `connection` goes to the broker's Redis, and its `database`.

    With the settings `signing`, and a key in them, calls and revocations are signed. With an `admission`, that script
    judges calls as well: if Redis has everything that this needs.
    """

    most_in_flight = 512  # answered within a tenth of a second where the agent's loop is busy with nothing else

    def __init__(
        self,
        connection: PipelinedConnection,
        *,
        keys: Keys,
        database: int,
        signing: SigningSettings | None = None,
        admission: AdmissionControl | None = None,
    ) -> None:
        self._connection = connection
        self._signing = signing
        self._seal = Seal(None) if signing is None else seal_of(signing)
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._timers = shared_timers(self._loop)
        self._batcher = AdmissionBatcher(connection, self._loop)
        self._keys = keys
        self._topic = keys.prefix + revocation_topic(database)
        self._origin = sender()
        self._revoked: list[str] = []
        self.readers: ApartReaders | None = None
        """Knows whether every live worker reads calls whose arguments stand apart; without it none is known to."""
        self.times_for_all = 0
        """The number of times that calls had to be published in a form that workers of any version read."""
        self.spawn: Callable[[Coroutine[Any, Any, None]], object] = self._loop.create_task
        """Runs something in the background."""

    @property
    def is_ready(self) -> bool:
        """Implements `Publisher.is_ready`."""
        return self._connection.is_connected

    async def ready(self) -> None:
        """Implements `Publisher.ready`."""
        try:
            await self._connection.connected()
        except RedisConnectionLost as exc:  # closed for good
            raise NotPublished("the fleet was left") from exc

    async def publish(
        self,
        call: PublishedCall,
        *,
        seconds: float,
        limit: int = 0,
        needs_worker: bool = False,
        again: bool = False,
        follow: Following | None = None,
    ) -> Refusal | None:
        """Implements `Publisher.publish`.

        Redis has the call, or refuses it: with admission control, or if `limit` messages wait in its queue.

        With admission control a call that is published `again` is in its queue once; without one it may be there twice.
        """
        now = fleet_clock.now()
        seconds = min(seconds, call.deadline_at - now)
        sealed, readers = None, self.readers
        if readers is not None and not readers.is_wanted:
            readers.want()
        if readers is not None and readers.are_all and is_sent_apart(call):
            sealed = self._seal.seal_apart(call)
        text = call_message(call, text=sealed or self._seal.seal(call), origin=self._origin, now=now)
        if self._admission is None:
            return await self.put(text, queue_for(call), seconds=seconds, limit=limit)
        if seconds <= 0:
            raise NotPublished("no time is left")
        script, parameters = self._admission.build_command(
            call, now=now, message=text, limit=limit, needs_worker=needs_worker, again=again
        )
        if sealed is not None:
            times: int | None = self.times_for_all
        else:  # an earlier try may have sent it apart
            times = 0 if again else None
        waited, tell = follow or (self._loop.create_future(), None)
        publishing = _Publishing(self, self._admission, call, times, waited, tell)
        self._batcher.send(parameters, self._loop.time() + seconds, publishing, script)
        del text, sealed, parameters, publishing  # while the end of a call is waited for, its message is not kept
        found = await waited
        if tell is None and found is None and self.is_outdated(times) and is_sent_apart(call):
            await self._publish_for_all(call)
        return found if isinstance(found, Refusal) else None

    def is_outdated(self, times: int | None) -> bool:
        """Return whether an older worker has come since a call was sent apart, when `times` were `times_for_all`; `None`: it was not."""
        return times is not None and times != self.times_for_all

    def publish_once_more(self, call: PublishedCall) -> None:
        """Publish a call in the form for all: an older worker has come that does not read the one in which it was sent."""
        if is_sent_apart(call):
            self.spawn(self._publish_for_all(call))

    async def put(self, message: str, queue_name: str, *, seconds: float, limit: int = 0) -> Refusal | None:
        """Put any message into a queue, once, without admission control; waits for the connection to stand, if it must.

        Raises `NotPublished` or `PublishUnconfirmed`, in `seconds` at the latest.
        """
        names = {
            "queue": self._keys.queue(queue_name),
            "notify_key": self._keys.notify_key(queue_name),
            "message": message,
        }
        give_up_at = self._loop.time() + seconds
        return refusal_in(await self._put(give_up_at, *PUBLISH.command(**names, limit=limit or None)))

    async def republish(self, delivered: Delivered, *, delay: float, retries: int) -> None:
        """Implements `Publisher.republish`."""
        again = delivered.message(origin=self._origin, retries=retries, eta=time_after(delay).isoformat())
        await self.put(again, delivered.label.queue, seconds=REPUBLISH_SECONDS)

    async def publish_for_all(self, calls: Iterable[PublishedCall]) -> None:
        """Put calls into their queues once more, in a form that workers of any version read: they may be there already."""
        self.times_for_all += 1
        await asyncio.gather(*map(self._publish_for_all, filter(is_sent_apart, calls)))

    async def _publish_for_all(self, call: PublishedCall) -> None:
        queue, now = queue_for(call), fleet_clock.now()
        text = call_message(call, text=self._seal.seal(call), origin=self._origin, now=now)
        try:
            await self.put(text, queue, seconds=REPUBLISH_SECONDS)
        except (NotPublished, PublishUnconfirmed) as exc:
            log.warning("call_not_published_for_all", call_id=call.call_id, error=str(exc))

    async def control(self, task: str, *args: str, queue: str = CONTROL, limit: int = 0) -> None:
        """Implements `Publisher.control`."""
        await self.put(
            control_message(task, args, queue, origin=self._origin), queue, seconds=CONTROL_SECONDS, limit=limit
        )

    async def revoke(self, call_id: str) -> None:
        """Implements `Publisher.revoke`."""
        self._revoked.append(call_id)
        await asyncio.sleep(0)
        # The first call speaks for all of this tick, and for those that were cancelled meanwhile.
        call_ids, self._revoked = self._revoked, []
        if not call_ids:
            return
        try:
            await self._revoke(revocation_message(call_ids, self._signing))
        except (NotPublished, OSError, ResponseError) as exc:
            log.warning("calls_not_revoked", call_ids=call_ids[:10], calls=len(call_ids), error=str(exc) or "no answer")

    def close(self) -> None:
        """Do nothing: another component owns the connection."""

    async def _revoke(self, message: str) -> None:
        give_up_at = self._loop.time() + _REVOKE_SECONDS
        while True:  # twice does no harm
            if not self._connection.is_connected:
                await self._connected(give_up_at)
            try:
                sent = self._connection.send("PUBLISH", self._topic, message)
                await _answered(self._timers, give_up_at, sent)
            except RedisConnectionLost:
                continue
            return

    async def _put(self, give_up_at: float, *command: Part) -> Any:
        try:
            return await self._sent_once(give_up_at, *command)
        except ResponseError as exc:
            raise _refused(exc) from exc

    async def _sent_once(self, give_up_at: float, *command: Part) -> Any:
        """The reply to what must not be sent twice. Raises `ResponseError` as well as what `put` does."""
        if give_up_at <= self._loop.time():
            raise NotPublished("no time is left")
        while True:
            if not self._connection.is_connected:
                await self._connected(give_up_at)
            with contextlib.suppress(BrokerUnavailable):
                try:
                    return await _answered(self._timers, give_up_at, self._connection.send(*command))
                except (RedisConnectionLost, TimeoutError) as exc:
                    raise _not_answered(exc) from exc

    async def _connected(self, give_up_at: float) -> None:
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._connection.connected()
        except TimeoutError as exc:
            raise BrokerUnavailable("Redis does not answer", passes=True) from exc
        except RedisConnectionLost as exc:  # closed for good
            raise NotPublished("the fleet was left") from exc


def is_sent_apart(call: PublishedCall) -> bool:
    """Return whether the call's arguments may stand apart.

    Not those of a job's step, which no agent follows, and not of a call that people approve, or that waits for its turn,
    which is not in a queue before: they cannot be published again for an older worker.
    """
    return call.job_id is None and call.approval is None and call.turn is None


async def _answered(timers: SharedTimers, give_up_at: float, reply: "asyncio.Future[Any]") -> Any:
    """Wait for a reply. Raises what `PipelinedConnection.send` does, or `TimeoutError`."""
    timer = timers.call_at(give_up_at, _expire, reply)
    try:
        return await reply
    finally:
        timer.cancel()


def _expire(reply: "asyncio.Future[Any]") -> None:
    if not reply.done():
        reply.set_exception(TimeoutError())


def _not_answered(error: Exception) -> BrokerUnavailable | PublishUnconfirmed:
    """Return what it means for the message that there was no answer: without a connection it was surely not sent."""
    if isinstance(error, RedisConnectionLost):
        return PublishUnconfirmed(str(error)) if error.sent else BrokerUnavailable(str(error), passes=True)
    return PublishUnconfirmed("no answer")


def _refused(error: ResponseError) -> NotPublished | PublishUnconfirmed:
    """Return what an error of Redis means for the message: a script that fails on its way leaves behind what it has written."""
    text = str(error)
    if (away := unavailable(error)) is not None:
        return away
    if is_one_of(("NOPERM",), error) and "script" not in text:
        return NotPublished(text)
    log.warning("publishing_failed", error=text)
    return PublishUnconfirmed(text)


def database_of(connect: Callable[[], Any]) -> int:
    """The number of the database to which a connection will be made."""
    return int(connect().db or 0)


_MOST_REQUESTS = 250  # messages in the queue of programs: they count as its backlog
_EVALUATE_SECONDS = 20.0  # for a job to hear of its call's end


def worker_publisher(app: Any) -> Publisher:
    """The one of the worker of `app`, a `FleetApp`; always the same."""
    here = worker_runtime.current()
    if here is not None and app.settings.has_redis_broker:
        return here.part(_make_publisher, app.settings)
    publisher: Publisher = app.publisher
    return publisher


def _make_publisher(here: WorkerRuntime, settings: Settings) -> RedisPublisher:
    broker, master = settings.broker or "", settings.sentinel_master
    database = database_of(connection_factory(broker, master=master))
    return RedisPublisher(here.to(broker, master=master), keys=settings.keys, database=database, signing=settings)


async def control_soon(app: Any, task: str, *args: str, queue: str = CONTROL, limit: int = 0) -> None:
    """Publish one of our own tasks from a worker of `app`. Raises nothing but cancellation."""
    try:
        await worker_publisher(app).control(task, *args, queue=queue, limit=limit)
    except Exception as exc:  # noqa: BLE001 - Redis, kombu and its transports raise anything
        log.warning("kick_not_published", task=task, args=args, error=str(exc) or repr(exc))


async def resume_programs_soon(app: Any, program_id: str) -> None:
    """Have a worker that can run programs go on with one, or with all that are due (''), from a worker that cannot.

    The queue may be paused, or served by no worker: then these do not pile up, and the sweep finds what was not told.
    """
    limit = _MOST_REQUESTS if program_id else 1
    await control_soon(app, RESUME_PROGRAMS, program_id, queue=queue_of(PROGRAMS), limit=limit)


async def evaluate_soon(task: Any, job_id: str) -> None:
    """Evaluate a job whose call has ended, or go on with a program: in this worker, if it can, else in any that can.

    If that gets lost, the sweep finds it.
    """
    of_program = is_program(job_id)
    here, evaluate = worker_runtime.current(), task.app.resume_programs if of_program else task.app.evaluate_job
    if of_program and (here is None or evaluate is None):
        await resume_programs_soon(task.app, job_id)
    elif here is None or evaluate is None:
        await control_soon(task.app, EVALUATE, job_id)
    else:  # the call's message is not held for that
        here.later(evaluate(job_id, seconds=_EVALUATE_SECONDS))
