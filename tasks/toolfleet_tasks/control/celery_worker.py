"""Sets up Celery's worker without what a fleet has no use for, and has fetched calls run without a request of Celery's.

`inspect`, events and Flower are shown the names of a call's arguments, never their values; how it ended, never its result: the
reader of Celery's data is not the call's caller. A call without success is shown as failed, though its task has not:
Celery stores its result.

Links of a canvas, messages that are not in our own form, that are to start later, expire, were revoked, are rate-limited,
or that a listener of Celery's signals or log needs take Celery's own path, and so does everything with RabbitMQ. On both
paths Celery can inspect and stop the call.
"""

import asyncio
import logging
import platform
import re
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, get_args
from weakref import ref

from celery import signals
from celery.apps.worker import Worker
from celery.exceptions import BackendError
from celery.worker import state, strategy
from celery.worker.consumer import Consumer
from celery.worker.consumer import consumer as consumer_module
from celery.worker.request import Request
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import MasterDownError, OutOfMemoryError, ReadOnlyError, RedisError

from toolfleet_registry.contracts import ErrorCode
from toolfleet_registry.errors import FleetError
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import own_pid
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.messages.envelope import DIED, FOLLOWERS, TASK, opened, text_alone
from toolfleet_tasks.queues import lane_of, queue_of

log = get_logger(__name__)

_PAUSE_SECONDS = 1.0  # between two tries to connect: Celery's own grow to half a minute

_PASSING = (OutOfMemoryError, ReadOnlyError, MasterDownError)
"""What a Redis answers that takes no writes for now: it is full, or no master. A worker that starts just then tries again."""

HIDDEN = "(…)"
"""The text in place of arguments that their publisher has not hidden."""


class FleetWorker(Worker):
    """Celery's worker without its slow start: it neither asks other workers for their logical clocks, which takes a second, nor gossips."""

    def prepare_args(self, **kwargs: Any) -> dict[str, Any]:
        """As Celery's command line gives them, but for these two."""
        args: dict[str, Any] = super().prepare_args(**kwargs)
        return args | {"without_mingle": True, "without_gossip": True}

    def startup_info(self, artlines: bool = True) -> str:  # noqa: FBT001, FBT002 - Celery's signature
        """Return Celery's banner, for which Python would start a program that tells the name of the processor."""
        vars(platform.uname()).setdefault("processor", platform.machine())
        banner: str = super().startup_info(artlines)
        return banner


class FleetConsumer(Consumer):
    """Set by `worker_consumer`. Calls go on while RabbitMQ is away; what cannot be taken for a task is logged without arguments."""

    event_dispatcher: Any
    """Celery's; has a connection of its own. `None` between two connections."""

    connection_errors: tuple[type[BaseException], ...]
    """The errors after which Celery connects again; after any other one it ends the worker."""

    waits_for_broker = False
    """Whether it tries to connect, for as long as that takes: Celery's loop stands still meanwhile. For any thread to read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connection_errors = (*self.connection_errors, *_PASSING)

    def ensure_connected(self, conn: Any) -> Any:
        """Connect as Celery does. While RabbitMQ is away, the pool's calls go on: they need it no more."""
        self.waits_for_broker = True
        try:
            pool: Any = self.pool
            if conn.transport.driver_type != "amqp":
                return super().ensure_connected(conn)
            _connect(conn, pool.wait_for)
            self.first_connection_attempt = False
            return conn
        finally:
            self.waits_for_broker = False

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Log it as Celery does, and pause if Redis takes no writes."""
        super().on_connection_error_before_connected(exc)
        self._pause_after(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Log it as Celery does, and close the connection of the events without a goodbye: a half-open one would not answer it."""
        if self.event_dispatcher is not None and self.event_dispatcher.connection:
            self.event_dispatcher.connection.collect()
        super().on_connection_error_after_connected(exc)
        self._pause_after(exc)

    def _pause_after(self, exc: Exception) -> None:
        if isinstance(exc, _PASSING):
            log.error("worker_waits_for_redis", error=str(exc))
            pool: Any = self.pool
            pool.wait_for(asyncio.sleep(_PAUSE_SECONDS))

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Log a message that cannot be decoded, without its arguments."""
        super().on_decode_error(_hidden(message), exc)

    def on_unknown_message(self, body: object, message: Any) -> None:
        """Log a message that is no task, without its arguments."""
        super().on_unknown_message(body, _hidden(message))

    def on_unknown_task(self, body: object, message: Any, exc: Exception) -> None:
        """Log a task that is not known, without its arguments."""
        super().on_unknown_task(body, _hidden(message), exc)


def _connect(conn: Connection, wait_for: Callable[[Coroutine[Any, Any, object]], None]) -> None:
    # Each of its addresses once. In a thread: one that is frozen takes connections and says nothing.
    try_once = partial(conn.ensure_connection, max_retries=max(len(conn.alt) - 1, 0), interval_start=0)
    while True:
        state.maybe_shutdown()
        try:
            return wait_for(asyncio.to_thread(try_once))
        except OperationalError as exc:
            log.error("worker_waits_for_broker", url=conn.as_uri(), error=str(exc))  # noqa: TRY400 - the error says all
            wait_for(asyncio.sleep(_PAUSE_SECONDS))


def _hidden(message: Any) -> Any:
    shown = {name: HIDDEN for name in ("argsrepr", "kwargsrepr") if name in (message.headers or {})}
    message.headers = {**(message.headers or {}), **shown}
    return message


def _size_of_body(message: Any, body: object) -> str:
    del body
    return f"{len(message.body or '')} bytes"


consumer_module.dump_body = _size_of_body  # which the methods above log


_NOT_NOTED = (
    RedisError,
    BackendError,
    OperationalError,
    OSError,
)  # what Celery's backend raises, which retries some of it
_NAMES_ONLY = ("=…)", "()")  # how `envelope.args_shown` ends
_DONE, _FAILED = "done", "failed"
_QUEUES = queue_of("")  # what their names begin with
_NUMBERS = (int, float)  # `int | float` would be made again with each event
_CODES = frozenset(get_args(ErrorCode))
_WORDS = _CODES | {_DONE, _FAILED}
_TIME_LIMITS = frozenset({"TimeLimitExceeded", "SoftTimeLimitExceeded"})
_ON_ITS_WAY_SECONDS = 0.2  # by which a worker may hear of a deadline before it has passed by its own clock
_SUCCESS = re.compile(r'"success": ?(true|false)')  # before what a module has said
_CODE = re.compile(r'"error_code": ?"(\w+)"')

_MAY_WAIT = frozenset({"eta", "expires", "stamped_headers"})  # headers of messages of which Celery makes more
_SIGNALS = (signals.task_received, signals.task_prerun, signals.task_postrun, signals.task_success)  # of each call


class FleetRequest(Request):
    """Set by `Request` of the task."""

    @property
    def eta(self) -> datetime | None:
        """The time when it may start, by this machine's clock, as Celery's timer needs: the message has the fleet's."""
        eta: datetime | None = super().eta
        return None if eta is None else eta + timedelta(seconds=fleet_clock.clock.wall_lead)

    @property
    def argsrepr(self) -> str:
        """The names of the arguments."""
        shown = str(self._argsrepr or "()")
        return shown if shown.endswith(_NAMES_ONLY) else HIDDEN

    @property
    def kwargsrepr(self) -> str:
        """The lane that the call runs in, and both of its limits: our messages have no keyword arguments."""
        module = str(self.delivery_info.get("routing_key")).removeprefix(_QUEUES)
        app: Any = self.app
        hard, soft = self.time_limits
        return f"lane={lane_of(module, app.modules.settings)}, soft_limit={_seconds(soft)}, hard_limit={_seconds(hard)}"

    def info(self, safe: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - Celery's signature
        """Describe the request for `inspect`: always without the arguments' values."""
        del safe
        shown: dict[str, Any] = super().info(safe=True)
        return shown | {"args": self.argsrepr, "kwargs": self.kwargsrepr}

    def revoked(self) -> bool:
        """As Celery's. Where that cannot be noted, as Redis is full or away, the call goes on to its body, and the ledger decides.

        Celery's own lets the error end the worker.
        """
        try:
            return bool(super().revoked())
        except _NOT_NOTED as exc:
            log.warning("revocation_not_noted", call_id=self.id, error=str(exc))
            return False

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Terminate as Celery does. A request that waits for its time is dropped then; its followers are told now."""
        super().terminate(pool, signal)
        self._tell_dropped()

    def _tell_dropped(self) -> None:
        for listener in worker_runtime.dropped:
            listener(self)

    def _announce_revoked(self, reason: str, terminated: bool, signum: object, expired: bool) -> None:  # noqa: FBT001 - Celery's
        try:
            super()._announce_revoked(reason, terminated, signum, expired)
        except _NOT_NOTED as exc:
            if not terminated:
                raise
            log.warning("revocation_not_noted", call_id=self.id, error=str(exc))  # what is still to come interrupts it
        self._tell_dropped()

    def send_event(self, type: str, **fields: Any) -> None:
        """As Celery does it, without results, texts of errors and tracebacks: the worker's log has what may be told."""
        if type == "task-succeeded":
            event = _ended(fields["result"], fields["runtime"])
            super().send_event(event.pop("type"), **event)
            return
        if "exception" in fields:
            fields["exception"] = _kind(fields["exception"], fields.get("traceback"))
            fields["traceback"] = None
        super().send_event(type, **fields)
        if type == "task-revoked":  # which stays an event: Flower counts by it what waits in a worker
            super().send_event("task-failed", exception=self._why_revoked(), traceback=None)

    def _why_revoked(self) -> ErrorCode:
        """Return why its agent has ended it: at its deadline or by cancellation."""
        try:
            call = opened(self.args[0], self.app, task_id=self.id)
        except (FleetError, ValueError, LookupError, TypeError):  # no call, or a newer one
            return "cancelled"
        if fleet_clock.now() < call.deadline_at - _ON_ITS_WAY_SECONDS:
            return "cancelled"
        return "timed_out" if self.time_start or self.request_dict.get("retries") else "expired"


class HousekeepingRequest(Request):
    """Set by `Request` of the fleet's own tasks, which have `send_events` off: their failures are told, and nothing else."""

    def send_event(self, type: str, **fields: Any) -> None:
        """As Celery does it, with the name and the arguments, which listeners know else from events before."""
        if type == "task-failed" and self.eventer and self.eventer.enabled:
            known = {"name": self.name, "args": self.argsrepr, "kwargs": self.kwargsrepr}
            kind = _kind(fields["exception"], fields.get("traceback"))
            self.eventer.send(type, uuid=self.id, **known, exception=kind, traceback=None)


def _ended(shown: object, runtime: float) -> dict[str, Any]:
    """Return the event about a call that has ended, by Celery's text of its task's result."""
    word = word_in(shown)
    if word == _DONE:
        return {"type": "task-succeeded", "result": word, "runtime": runtime}
    return {"type": "task-failed", "exception": word, "traceback": None, "runtime": runtime}


def word_in(shown: object) -> str:
    """Return how a call ended, from Celery's text of its task's result: a word of ours, or with RabbitMQ its result."""
    text = str(shown).strip("'")
    if text in _WORDS:
        return text
    success = _SUCCESS.search(text)
    if success is None or success[1] == "true":
        return _DONE
    # A result may hold such a name as well, and anything behind it.
    return next((code for code in reversed(_CODE.findall(text)) if code in _CODES), _FAILED)


def _kind(exception: object, traceback: object) -> str:
    """The error code that an exception stands for, or the name of its class."""
    code = str(traceback or "").rstrip(" .\n").rpartition(": ")[2]
    kind = str(exception).partition("(")[0]
    if code in _CODES:
        return code
    return "timed_out" if kind in _TIME_LIMITS else kind


def _seconds(limit: object) -> str:
    """Format a header's value, which any sender may have written."""
    return f"{limit:.10g}s" if isinstance(limit, _NUMBERS) else "none"


class FetchedCall:
    """A call's message in a worker, from its fetch to its acknowledgement: its pool runs it at once, and Celery's worker has it among its requests.

    It says what the message says, under the names of Celery's `Context`; `None` for missing fields. What Celery asks
    of a request that runs is asked of its own kind of request, which is made for that. `body` is the sealed call.
    """

    __slots__ = (
        DIED, "__weakref__", "_celery", "_front", "_known", "_raw", "acknowledged", "body", "delivery_info", "delivery_tag",
        "eventer", "headers", "hostname", "id", "is_again_here", "is_parked", "is_stored", "name", "properties", "retries", "run", "time_start",
    )  # fmt: skip

    def __init__(self, front: "CallFront", message: Mapping[str, Any], body: str) -> None:
        self._front, self._raw, self.body = front, message, body
        self.headers = headers = message["headers"]
        self.properties = properties = message["properties"]
        self.id, self.retries = headers["id"], headers["retries"]
        self.name = str(headers.get("shadow") or TASK)
        self.toolfleet_died = headers.get(DIED)
        self.delivery_tag, self.delivery_info = properties["delivery_tag"], properties["delivery_info"]
        self.hostname, self.eventer = front.hostname, front.eventer
        self.acknowledged = self.is_again_here = self.is_parked = self.is_stored = False
        self.time_start = 0.0
        self.run: Callable[[], Any] | None = None
        """A weak reference to the pool's job."""
        self._known = ref(self)
        self._celery: FleetRequest | None = None

    def __getattr__(self, name: str) -> Any:
        return self.headers.get(name)

    get = __getattr__
    """Return the header of this name."""

    @property
    def args(self) -> list[str]:
        """The task's arguments."""
        return [self.body]

    @property
    def reply_to(self) -> str | None:
        """The queue that Celery's client asks for an answer."""
        reply_to: str | None = self.properties.get("reply_to")
        return reply_to

    @property
    def message(self) -> "FetchedCall":
        """The message, as Celery's request has it."""
        return self

    @property
    def task(self) -> Any:
        """Celery's task."""
        return self._front.task

    @property
    def celery(self) -> FleetRequest:
        """Celery's request of this call."""
        if self._celery is None:
            self._celery = self._made()
        self._celery.eventer = self.eventer  # Celery sets another one after a reconnect
        return self._celery

    def _made(self) -> FleetRequest:
        body: tuple[Any, ...] = ([self.body], {}, dict.fromkeys(FOLLOWERS))
        acks = {"on_ack": self.acknowledge, "on_reject": self._reject, "eventer": self.eventer}
        request = FleetRequest(self, headers=self.headers, body=body, decoded=True, **acks, **self._front.named)
        request.worker_pid, request.time_start = own_pid(), self.time_start
        request._apply_result, request.acknowledged = self.run, self.acknowledged  # noqa: SLF001 - as Celery does
        return request

    def info(self, safe: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - Celery's signature
        """Describe the call for `inspect`."""
        return self.celery.info(safe)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Terminate the call as Celery does."""
        self.celery.terminate(pool, signal)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:  # noqa: FBT001, FBT002 - as above
        """Cancel the call as Celery does in a cold shutdown."""
        self.celery.cancel(pool, signal, emit_retry)

    def begin(self) -> None:
        """Have Celery's worker know that the call runs."""
        self.time_start = machine_clock.wall()
        first = state.requests.setdefault(self.id, self)  # a second message of a call does not hide the one that runs
        if first is not self and isinstance(first, FetchedCall):
            first.is_again_here = True
        # Not by `add`, which makes a reference of its own in each of the two sets.
        state.reserved_requests.data.add(self._known)
        state.active_requests.data.add(self._known)
        state.total_count[self.name] += 1
        state.all_total_count[0] += 1
        if self.eventer:
            self.eventer.tell(self._received, lambda: {"type": "task-started", "uuid": self.id})

    def _received(self) -> dict[str, Any]:
        request = self._made()  # it may have ended by now
        return {
            "type": "task-received",
            "uuid": self.id,
            "name": self.name,
            "args": request.argsrepr,
            "kwargs": request.kwargsrepr,
            "root_id": request.root_id,
            "parent_id": request.parent_id,
            "retries": self.retries,
            "eta": None,
            "expires": None,
        }

    def succeed(self, word: str, runtime: float) -> None:
        """Acknowledge the message of a call after its end is stored; `word` tells how it has ended."""
        self.acknowledge()
        if self.eventer:
            call_id = self.id
            self.eventer.tell(lambda: {"uuid": call_id, **_ended(word, runtime)})

    def acknowledge(self, *_: object) -> None:
        """Forget the message for good."""
        if not self.acknowledged:
            self.acknowledged = True
            self._front.here.intake.acknowledge(self)

    def _reject(self, log: object, errors: object, requeue: bool) -> None:  # noqa: ARG002, FBT001 - as Celery calls it
        if not self.acknowledged:
            self.acknowledged = True
            self._front.here.intake.reject(self, requeue=requeue)

    def leave(self) -> None:
        """Have Celery's worker forget the call, which runs no longer."""
        self._celery = None  # which has us
        if state.requests.get(self.id) is self:
            del state.requests[self.id]
        state.active_requests.data.discard(self._known)
        state.reserved_requests.data.discard(self._known)
        if self.is_again_here:  # by another message, which may be the one that runs: `revoke` is to find it
            for other in tuple(state.active_requests):
                if other.id == self.id:
                    other.is_again_here = True  # by a third one, perhaps
                    state.requests.setdefault(self.id, other)


def call_strategy(task: Any, app: Any, consumer: Any) -> Any:
    """Set by `Strategy` of the task: Celery's own. A worker that fetches its messages by itself asks `CallFront` before."""
    here = worker_runtime.current()
    if here is not None:
        is_ours = app.settings.has_redis_broker and app.use_fast_trace_task
        logs_each = strategy.logger.isEnabledFor(logging.INFO)  # in Celery's log, of each call
        here.take = CallFront(task, app, consumer, here).take if is_ours and not logs_each else worker_runtime.take_none
    return strategy.default(task, app, consumer)


class CallFront:
    """Takes fetched messages with which Celery would do nothing but pass them to the pool. Celery makes one for each connection."""

    def __init__(self, task: Any, app: Any, consumer: Any, here: worker_runtime.WorkerRuntime) -> None:
        self.task, self.hostname, self.here = task, consumer.hostname, here
        self.eventer = consumer.event_dispatcher if task.send_events else None
        self._consumer = consumer
        self.named = {"app": app, "task": task, "hostname": consumer.hostname}
        self.named |= {"connection_errors": consumer.connection_errors, "utc": app.uses_utc_timezone()}

    def take(self, message: dict[str, Any]) -> bool:
        """Have the pool run a message's call; False, and nothing has happened, for one that is not plain."""
        if not self._is_plain(message["headers"]) or (body := text_alone(message)) is None:
            return False
        call = FetchedCall(self, message, body)
        if not self._consumer.pool.run_call(call):
            return False
        del message["body"]  # thousands of calls wait here with all that they have
        call.begin()
        return True

    def _is_plain(self, headers: Mapping[str, Any]) -> bool:
        if headers["task"] != TASK or headers.get("retries") is None:
            return False
        if not _MAY_WAIT.isdisjoint(headers) and any(headers.get(name) is not None for name in _MAY_WAIT):
            return False
        received, begun, ended, succeeded = _SIGNALS
        if received.receivers or begun.receivers or ended.receivers or succeeded.receivers:
            return False
        consumer = self._consumer
        if consumer.task_buckets[TASK] is not None or consumer.on_task_message:
            return False
        return headers["id"] not in state.revoked
