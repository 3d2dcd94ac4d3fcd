"""Publishes through kombu, which blocks, without blocking the event loop."""

import asyncio
import json
import socket
import threading
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from kombu.connection import Connection
from kombu.messaging import Producer

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.errors import BrokerUnavailable, NotPublished, PublishUnconfirmed
from toolfleet_registry.redis.servers import reason_of
from toolfleet_registry.signing import SigningSettings
from toolfleet_registry.spans import TraceContext, carried
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.admission import Refusal
from toolfleet_tasks.aio import is_wanted
from toolfleet_tasks.broker import KombuConnections, make_queue, waiting_in
from toolfleet_tasks.messages.envelope import TASK, Links, args_shown, revocation, seconds_kept, time_after
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.queues import CONTROL, nets_around, queue_for
from toolfleet_tasks.transport.publisher import CONTROL_SECONDS, REPUBLISH_SECONDS, Delivered

log = get_logger(__name__)

_THREADS = 4  # kombu spends its time in Python: more threads only wait for each other
# Seconds for the broker's answer. The first where hardly any are left; py-amqp takes 0 for "for ever". After the second the
# call is published again, over a new connection.
_SHORTEST_WAIT, _LONGEST_WAIT = 0.1, 5.0

_POLL_SECONDS = 1.0  # between two questions for the same queue
_SURE_SECONDS = 0.1  # the same, while it seems to be full: what was published here may have been taken long ago


class KombuPublisher:
    """Implements `Publisher` with the connections of `app`.

    A call whose caller has gone before its turn is left out.
    """

    most_in_flight = (
        8 * _THREADS
    )  # enough that no thread waits for the loop, and few enough that none waits long for a thread
    is_ready = True  # kombu connects when it must, and says so when it cannot

    def __init__(self, app: Celery, *, seal: Seal, signing: SigningSettings) -> None:
        self._app = app
        self._seal = seal
        self._signing = signing
        self._connections = KombuConnections(app)
        self._backlogs = Backlogs()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="toolfleet-publish")

    async def ready(self) -> None:
        """Implements `Publisher.ready`."""

    async def publish(
        self,
        call: PublishedCall,
        *,
        seconds: float,
        limit: int = 0,
        needs_worker: bool = False,
        again: bool = False,
        follow: object = None,
    ) -> Refusal | None:
        """Implements `Publisher.publish`. A call that is published `again` may be in its queue twice.

        The queue's length is read at most once a second, unless the queue seems to be full; until then, calls published
        here are added.
        """
        del needs_worker, again, follow
        turn = threading.Lock()  # the first to take it decides: a thread that sends, or we, who have waited enough
        give_up_at = machine_clock.monotonic() + seconds
        try:
            sending = asyncio.get_running_loop().run_in_executor(
                self._threads, self._send, call, carried(), limit, turn, give_up_at
            )
        except RuntimeError as exc:
            raise NotPublished("the fleet was left") from exc
        try:
            async with asyncio.timeout(seconds):
                return await sending
        except asyncio.CancelledError as exc:
            if not is_wanted():
                raise
            raise NotPublished("the fleet was left") from exc  # `close` took it out of the threads' queue
        except TimeoutError as exc:
            if turn.acquire(blocking=False):
                raise BrokerUnavailable("no answer", passes=True) from exc
            raise PublishUnconfirmed("no answer") from exc
        finally:
            turn.acquire(blocking=False)

    async def republish(self, delivered: Delivered, *, delay: float, retries: int) -> None:
        """Implements `Publisher.republish`."""
        await self._in_thread(REPUBLISH_SECONDS, self._send_again, delivered, delay, retries)

    async def put(self, message: str, queue_name: str, *, seconds: float) -> None:
        """Implements `Publisher.put`."""
        await self._in_thread(seconds, self._send_kept, message, queue_name)

    async def control(self, task: str, *args: str, queue: str = CONTROL, limit: int = 0) -> None:
        """Implements `Publisher.control`."""
        await self._in_thread(CONTROL_SECONDS, self._send_control, task, args, queue, limit)

    async def revoke(self, call_id: str) -> None:
        """Implements `Publisher.revoke`."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._send_revoke, call_id)
        except Exception as exc:  # noqa: BLE001 - kombu and its transports raise anything
            log.warning("call_not_revoked", call_id=call_id, error=str(exc))

    def close(self) -> None:
        """Let go of threads and connections; what a thread is at is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        threading.Thread(target=self._close, name="toolfleet-publish-close").start()

    async def _in_thread(self, seconds: float, send: Callable[..., None], *args: object) -> None:
        """Send what may be there twice. Raises `NotPublished` or `PublishUnconfirmed`, within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().run_in_executor(self._threads, send, *args)
        except TimeoutError as exc:
            raise PublishUnconfirmed("no answer") from exc
        except RuntimeError as exc:
            raise NotPublished("the fleet was left") from exc

    def _send(
        self, call: PublishedCall, trace: TraceContext | None, limit: int, turn: threading.Lock, give_up_at: float
    ) -> Refusal | None:
        if turn.locked():
            return None
        queue = queue_for(call)
        with self._connections.one(queue) as connection:
            waiting = self._backlogs.of(queue, connection, limit=limit) if limit else 0
            if limit and waiting >= limit:
                return Refusal("backlog", count=waiting)
            if not turn.acquire(blocking=False):
                return None
            try:
                self._send_over(connection, call, trace, queue, seconds=give_up_at - machine_clock.monotonic())
            except Exception as exc:
                if _was_refused(exc):
                    raise BrokerUnavailable(reason_of(exc, "no connection"), passes=True) from exc
                raise PublishUnconfirmed(str(exc)) from exc
            self._backlogs.add(queue)
            return None

    def _send_over(
        self, connection: Connection, call: PublishedCall, trace: TraceContext | None, queue: str, *, seconds: float
    ) -> None:
        soft_limit, hard_limit = nets_around(call.limit_seconds)
        self._app.send_task(
            TASK,
            args=[self._seal.seal(call)],
            task_id=call.call_id,
            queue=queue,
            shadow=call.tool_name,
            connection=connection,
            # For RabbitMQ's word that it has the message. Over a half-open connection it never comes.
            confirm_timeout=min(max(seconds, _SHORTEST_WAIT), _LONGEST_WAIT),
            # For brokers that drop what is too old. Not Celery's `expires`: it would end a call that was delivered
            # a second time as one that surely never ran. The task looks at the deadline itself.
            expiration=seconds_kept(call),
            soft_time_limit=soft_limit,
            time_limit=hard_limit,
            # What Flower and the logs show: which arguments, never their values.
            argsrepr=args_shown(call.arguments),
            kwargsrepr="{}",
            headers=None if trace is None else trace.headers,
        )

    def _send_again(self, delivered: Delivered, delay: float, retries: int) -> None:
        label, links = delivered.label, delivered.label.links
        soft_limit, hard_limit = label.limits
        self._send_by_name(
            TASK,
            label.queue,
            args=[delivered.text],
            task_id=label.call_id,
            shadow=label.shadow,
            argsrepr=label.args_shown,
            kwargsrepr="{}",
            soft_time_limit=soft_limit,
            time_limit=hard_limit,
            reply_to=delivered.reply_to,
            headers=_with_trace(delivered.headers, label.trace),
            retries=retries,
            # No `countdown`: Celery makes of it a time by this machine's clock, and its receiver takes that for the fleet's.
            eta=time_after(delay) if delay else None,
            **({} if links is None else _place_of(links)),
        )

    def _send_kept(self, message: str, queue: str) -> None:
        kept = json.loads(message)
        properties = kept["properties"]
        with self._connections.one(queue) as connection:
            try:
                connection.Producer().publish(
                    b64decode(kept["body"]),
                    routing_key=queue,
                    content_type=kept["content-type"],
                    content_encoding=kept["content-encoding"],
                    headers=kept["headers"],
                    correlation_id=properties["correlation_id"],
                    reply_to=properties["reply_to"],
                    delivery_mode=properties["delivery_mode"],
                    confirm_timeout=_LONGEST_WAIT,
                )
            except Exception as exc:  # kombu and its transports raise anything
                raise PublishUnconfirmed(str(exc)) from exc

    def _send_control(self, task: str, args: Sequence[str], queue: str, limit: int) -> None:
        with self._connections.one(queue) as connection:
            if limit and self._backlogs.of(queue, connection, limit=limit) >= limit:
                return
        self._send_by_name(task, queue, args=list(args), ignore_result=True)

    def _send_by_name(self, task: str, queue: str, **options: Any) -> None:
        with self._connections.one(queue) as connection:
            try:
                # Not by its name: a worker may ask those of a queue that it does not consume itself.
                self._app.send_task(task, queue=make_queue(queue), connection=connection, **options)
            except Exception as exc:  # kombu and its transports raise anything
                raise PublishUnconfirmed(str(exc)) from exc

    def _send_revoke(self, call_id: str) -> None:
        with self._connections.one() as connection:
            # As `app.control.revoke` does, which would try for ever while the broker is away, in a thread of ours.
            once = _OneTry(connection)  # type: ignore[no-untyped-call] # kombu's types are partial
            order = revocation([call_id], self._signing)
            self._app.control.mailbox(connection)._publish("revoke", order, producer=once)  # noqa: SLF001 - no public way

    def _close(self) -> None:
        self._connections.close()
        self._app.close()


def _with_trace(headers: Mapping[str, Any] | None, trace: TraceContext | None) -> Mapping[str, Any] | None:
    return headers if trace is None else {**(headers or {}), **trace.headers}


def _place_of(links: Links) -> dict[str, Any]:
    """A call's place in the canvas, as Celery's options have it."""
    after = links.after
    return {
        "link": after["callbacks"],
        "link_error": after["errbacks"],
        "chain": after["chain"],
        "chord": after["chord"],
        "group_id": links.group,
        "group_index": links.group_index,
        "root_id": links.root_id,
        "parent_id": links.parent_id,
    }


class _OneTry(Producer):
    """A producer that publishes or fails, ignoring retry options."""

    def publish(self, *args: Any, **options: Any) -> Any:
        """As kombu's, once."""
        return super().publish(*args, **{**options, "retry": False})  # type: ignore[no-untyped-call] # as above


def _was_refused(exc: BaseException | None) -> bool:
    """Return whether kombu's error means that no connection was made: then nothing can have been sent."""
    while exc is not None:
        if isinstance(exc, ConnectionRefusedError | socket.gaierror):
            return True
        exc = exc.__cause__ or exc.__context__
    return False


@dataclass(slots=True)
class _Backlog:
    """`waiting` as the broker said at `read_at`, and with what was published here since."""

    waiting: int = 0
    read_at: float = -_POLL_SECONDS
    lock: threading.Lock = field(default_factory=threading.Lock)


class Backlogs:
    """The known lengths of queues. Thread-safe: one thread asks, and the others use the known value."""

    def __init__(self) -> None:
        self._known: dict[str, _Backlog] = {}

    def of(self, queue: str, connection: Connection, *, limit: int) -> int:
        """Return how many calls wait, as far as is known; at `limit` it is asked again.

        Raises `BrokerUnavailable` without an answer.
        """
        backlog = self._known.setdefault(queue, _Backlog())
        age = machine_clock.monotonic() - backlog.read_at
        is_old = age >= (_SURE_SECONDS if backlog.waiting >= limit else _POLL_SECONDS)
        if is_old and backlog.lock.acquire(blocking=False):
            try:
                backlog.waiting = _asked(queue, connection)
                backlog.read_at = machine_clock.monotonic()
            finally:
                backlog.lock.release()
        return backlog.waiting

    def add(self, queue: str) -> None:
        """One more was published here."""
        if queue in self._known:
            self._known[queue].waiting += 1


def _asked(queue: str, connection: Connection) -> int:
    try:
        return waiting_in(connection, [queue])[0]
    except Exception as exc:  # kombu and its transports raise anything
        raise BrokerUnavailable(reason_of(exc, "no answer"), passes=True) from exc
