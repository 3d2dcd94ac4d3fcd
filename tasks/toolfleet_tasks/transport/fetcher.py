"""Fetches messages in batches: blocks on the notify keys of the queues, then reserves up to the number of free slots.

Falling asleep on thousands of keys takes Redis milliseconds in which it serves no other client. So after a notification
only the connection whose batch had it listens again.

Nothing here blocks the loop, and nothing raises when Redis is away: it goes on when Redis is back.
"""

import asyncio
import functools
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from redis.exceptions import ResponseError

from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.messages.envelope import BEGIN, DIED, ParsedBody, parsed
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionClosed, RedisConnectionLost, ignored
from toolfleet_tasks.transport import scripts
from toolfleet_tasks.transport.leases import Leases
from toolfleet_tasks.transport.reservations import (
    QUARANTINED_AT_MOST,
    Capacity,
    Quarantine,
    ReadyQueues,
    Reservations,
    Reserved,
    kept_message,
)

log = get_logger(__name__)

BATCH_SIZE = 128  # keys: Redis is at them for a tenth of a millisecond
MOST_CONNECTIONS = 16  # of a worker; of more queues each gets a larger batch

Message = dict[str, Any]

BATCH = 32  # messages a turn: more would save no time, and keep them from other workers that are free
_PAUSE_SECONDS = 1.0  # after Redis has refused


class NotifyKeys:
    """The notify keys of one loop.

    `connection_of` gives a connection of its own for each batch, by number; `connection` is one that never blocks.

    A notification that is taken here is taken by no other worker: one that cannot be used must be given back.
    """

    def __init__(
        self, connection: PipelinedConnection, connection_of: Callable[[int], PipelinedConnection], prefix: str
    ) -> None:
        self._connection = connection
        self._connection_of = connection_of
        self._prefix = prefix
        self._queues: Sequence[str] = ()
        self._batches: list[tuple[PipelinedConnection, list[str]]] = []
        self._asked = dict[int, asyncio.Future[Any]]()  # by batch; Redis has not answered
        self._heard = deque[str]()
        self._error: Exception | None = None
        self._has_changed = asyncio.Event()
        self._is_resting = False

    async def notified(
        self,
        queues: Sequence[str],
        *,
        seconds: float,
        capacity: Callable[[], int],
        on_wait: Callable[[PipelinedConnection], object] | None = None,
    ) -> list[str]:
        """Queues that were notified, at most as many as there is `capacity` for then: at once, or none after `seconds`.

        `queues` is another object when there are others. `on_wait` gets the connection that begins to wait for all of them, if it is
        one: what it sends there, Redis runs with the notification. Raises `RedisConnectionLost`, and what Redis says to it.
        """
        self._is_resting = False
        self._has_changed.clear()
        self._distribute(queues)
        for number, (connection, notify_keys) in enumerate(self._batches):
            if number not in self._asked:
                await connection.connected()
                notification = self._asked[number] = connection.send("BRPOP", *notify_keys, seconds)
                notification.add_done_callback(functools.partial(self._on_answer, number))
                if on_wait is not None and len(self._batches) == len(self._asked) == 1 and not self._heard:
                    on_wait(connection)
        if not (self._heard or self._error or self._has_changed.is_set()):
            try:  # noqa: SIM105 - it costs three calls. A single one by itself, a turn of the loop sooner
                await (self._has_changed.wait() if len(self._asked) > 1 else next(iter(self._asked.values())))
            except (RedisConnectionLost, ResponseError):  # which are kept
                pass
        error, self._error = self._error, None
        if error is not None:
            raise error
        return [self._heard.popleft() for _ in range(min(capacity(), len(self._heard)))]

    def rest(self) -> None:
        """Hear nothing until `notified` is asked again: what comes meanwhile is for others."""
        self._is_resting = True
        while self._heard:
            self.give_back(self._heard.popleft())

    def give_back(self, queue: str) -> None:
        """Pass a notification on that was taken."""
        self._connection.send("LPUSH", self._prefix + queue, "1").add_done_callback(ignored)

    def _distribute(self, queues: Sequence[str]) -> None:
        if queues is self._queues:
            return
        self._queues = queues
        size = max(BATCH_SIZE, -(-len(queues) // MOST_CONNECTIONS))
        parts = [queues[start : start + size] for start in range(0, len(queues), size)]
        self._batches = [
            (self._connection_of(number), [self._prefix + queue for queue in part]) for number, part in enumerate(parts)
        ]

    def _on_answer(self, number: int, notification: "asyncio.Future[Any]") -> None:
        del self._asked[number]
        self._has_changed.set()
        if notification.cancelled():
            return
        if (error := notification.exception()) is not None:
            self._error = error if isinstance(error, Exception) else None
        elif (token := notification.result()) is not None:
            queue = token[0].decode().removeprefix(self._prefix)
            if self._is_resting:
                self.give_back(queue)
            else:
                self._heard.append(queue)


def read_message(item: bytes, queue: str, tag: str) -> Message:
    """A task's message as kombu takes it, under the worker's own `tag`. Raises `ValueError` for anything else."""
    try:
        message: Message = parsed(item, queue)
    except (ValueError, LookupError, TypeError) as exc:
        raise ValueError(f"not JSON: {exc}") from exc
    match message:  # in patterns, which call nothing: each message passes here
        case {
            "headers": {"task": str(), "id": str()} as headers,
            "properties": dict() as properties,
            "body": str() | ParsedBody(),
        }:
            pass
        case {"headers": dict(), "properties": dict(), "body": str() | ParsedBody()}:
            raise ValueError("not a task: its name or its id is missing")
        case _:
            raise ValueError("not a message: headers, properties or body are missing")
    if not _are_limits(headers.get("timelimit")):
        raise ValueError("not a task: its limits are not two numbers of seconds")
    info: Any = properties.get("delivery_info")
    match info:
        case {"exchange": _, "routing_key": str()}:
            pass
        case {"routing_key": key} if not isinstance(key, str):
            raise ValueError("not a task: its routing key is not a text")
        case _:
            given = info if isinstance(info, dict) else {}
            info = properties["delivery_info"] = {"exchange": "", "routing_key": queue, **given}
    message.pop(BEGIN, None)
    if message.pop("redelivered", False):
        headers["redelivered"] = info["redelivered"] = True
    died = message.pop("died", None)
    if died is not None:
        headers[DIED] = died
    properties["delivery_tag"] = tag
    return message


def _are_limits(limits: object) -> bool:
    """Return whether Celery can use these limits: a failure only there would cost a slot for good."""
    match limits:
        case None:
            return True
        case [None | int() | float() as hard, None | int() | float() as soft]:
            return (hard is None or 0 <= hard < math.inf) and (soft is None or 0 <= soft < math.inf)
        case _:
            return False


class Consumer(Protocol):
    """The consumer of fetched messages."""

    def queues(self) -> Sequence[str]:
        """The names of the queues to take from; another object when they are others."""
        ...

    def capacity(self) -> int:
        """Return how many more messages may be held now, of any queues."""
        ...

    def burst(self) -> tuple[Sequence[str], int]:
        """Return the queues of which messages may be held without such capacity, and how many."""
        ...

    def expect(self, count: int) -> None:
        """Note that so many more messages were requested, and reserve their room; negative: so many are no longer on their way."""
        ...

    def deliver(self, message: Message, queue: str) -> Awaitable[object] | None:
        """Start a message. Returns what is to be waited for until it has started, if anything is."""
        ...

    def forget(self, tag: str) -> None:
        """Make room again: a message that was delivered is seen to otherwise."""
        ...


class Fetcher:
    """Takes messages for one consumer, from `wake` on, whenever there is room and something in a queue.

    `bounds`, by queue: calls of these are left there while there is no room for them.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        connection: PipelinedConnection,
        notify_keys: NotifyKeys,
        leases: Leases,
        quarantine: Quarantine,
        bounds: Mapping[str, Capacity] | None = None,
    ) -> None:
        self._consumer, self._bounds = consumer, bounds or {}
        self._connection = connection
        self._notify_keys = notify_keys
        self._leases = leases
        self._quarantine = quarantine
        self._is_full = False  # it waits for room, or for a queue
        self._has_changed = asyncio.Event()
        self._ready = ReadyQueues(connection, leases.store.queue_prefix)
        self._reservations = Reservations(connection, leases, self._ready, self._bounds)
        self._turn = asyncio.Lock()
        self._set_asides: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Wake up: there is more room, or another queue."""
        if self._is_full:
            self._has_changed.set()

    async def run(self) -> None:
        """Take messages until cancelled, or until a connection is closed."""
        try:
            await keep_fetching(self._fetch, self._connection)
        finally:
            self._notify_keys.rest()

    def release_slot(self, queue: str, call_id: str) -> None:
        """A message is done with: another worker may have been waiting for its place."""
        capacity, store = self._bounds.get(queue), self._leases.store
        if capacity is not None:
            keys = {"queue": store.queue_prefix + queue, "notify_key": store.notify_prefix + queue}
            command = scripts.RELEASE_SLOT.command(running=capacity.running, **keys, call_id=call_id)
            self._connection.send(*command).add_done_callback(ignored)

    def set_aside(self, tag: str, queue: str, item: bytes, reason: str) -> None:
        """Take a held message out of the way, for an operator to look at. It is held until Redis has done so.

        One that Redis does not take stays held: it is requeued at the worker's end, for the next one to try.
        """
        task = self._leases.loop.create_task(self._move(tag, queue, item, reason))
        self._set_asides.add(task)
        task.add_done_callback(self._set_asides.discard)

    async def _move(self, tag: str, queue: str, item: bytes, reason: str) -> None:
        text = item.decode("utf-8", errors="backslashreplace")
        kept = kept_message(queue, reason, text)
        store, place = self._leases.store, self._quarantine
        command = scripts.QUARANTINE.command(
            unacked=store.unacked,
            unacked_index=store.unacked_index,
            messages=place.messages,
            counter=place.counter,
            tag=tag,
            kept=kept,
            most=QUARANTINED_AT_MOST,
        )
        try:
            count = await self._connection.execute(*command)
        except (RedisConnectionLost, ResponseError) as exc:
            log.warning("message_not_quarantined", queue=queue, error=str(exc))
            return
        self._leases.drop(tag)
        log.error("message_quarantined", queue=queue, reason=reason, bytes=len(item), so_far=count)

    async def _fetch(self, may_hold: bool) -> bool:  # noqa: FBT001 - as `keep_fetching` calls it
        queues = await self._wait_for_capacity()
        if not may_hold and (reserved := await self._wait_for_notification(queues)) is not None:
            return await self._begin(reserved)
        return await self.take(lambda: (self._consumer.queues(), self._consumer.capacity()))

    async def _begin(self, reserved: Reserved) -> bool:
        """Deliver what was reserved with a notification, or give it back if there is no room by now. As `take`."""
        if self._turn.locked() or self._consumer.capacity() < len(reserved):
            self._leases.requeue([tag for tag, _, _ in reserved], begun=False)
        else:
            await self._deliver(reserved)
        queues = self._consumer.queues()
        await self._ready.refresh(queues)
        return not queues or self._ready.is_any(queues)

    def notified(self, queue: str) -> None:
        """Note a queue that was notified: the next turn asks for it."""
        self._ready.note(queue)

    async def _wait_for_capacity(self) -> Sequence[str]:
        while not ((queues := self._consumer.queues()) and self._consumer.capacity() > 0):
            self._has_changed.clear()
            self._is_full = True
            self._notify_keys.rest()
            await self._has_changed.wait()
        self._is_full = False
        return queues

    async def _wait_for_notification(self, queues: Sequence[str]) -> Reserved | None:
        """Wait for a notification, and return what was reserved with it, if Redis was asked to."""
        try:
            notified = await self._notify_keys.notified(
                queues,
                seconds=self._ready.seconds_left,
                capacity=self._consumer.capacity,
                on_wait=functools.partial(self._reservations.stand, queues=queues),
            )
            if (reserved := await self._reservations.stood()) is not None:
                return reserved
        except RedisConnectionLost:
            self._ready.doubt()
            raise
        finally:
            self._reservations.abandon()
        consumed = self._consumer.queues()
        for queue in notified:
            if queue in consumed:
                self._ready.note(queue)
            else:
                self._notify_keys.give_back(queue)  # no longer ours to answer
        return None

    async def take(self, offer: Callable[[], tuple[Sequence[str], int]]) -> bool:
        """One turn: at most so many from these queues, as `offer` says when it begins. Whether something is left there."""
        async with self._turn:  # two at a time would count on the same room
            await self._ready.refresh(self._consumer.queues())
            queues, capacity = offer()
            if not queues or capacity <= 0:
                return True
            wanted = min(capacity, BATCH)
            self._consumer.expect(wanted)
            try:
                reserved = await self._reservations.reserve(self._ready.choose(queues), wanted)
                await self._deliver(reserved)
            finally:
                self._consumer.expect(-wanted)
            if reserved:
                await self._ready.refresh(queues, is_busy=True)
            return self._ready.is_any(queues)

    async def _deliver(self, reserved: Reserved) -> None:
        left = deque(reserved)
        try:
            while left:
                tag, queue, item = left[0]
                try:
                    begun = self._consumer.deliver(read_message(item, queue, tag), queue)
                    if begun is not None:
                        await begun
                except ValueError as exc:
                    self._refuse(tag, queue, item, str(exc))
                except Exception as exc:
                    log.exception("message_not_delivered", queue=queue)
                    self._refuse(tag, queue, item, repr(exc))
                left.popleft()
        finally:
            if left:  # cancelled: an undelivered message must not stay here
                self._leases.requeue([tag for tag, _, _ in left], begun=False)

    def _refuse(self, tag: str, queue: str, item: bytes, reason: str) -> None:
        self._consumer.forget(tag)
        self.set_aside(tag, queue, item, reason)


async def keep_fetching(fetch: Callable[[bool], Awaitable[bool]], *connections: PipelinedConnection) -> None:
    """Look again and again, until cancelled, or until a connection is closed.

    `fetch` gets whether a queue may hold something that no notification would tell of, and says it of the next time.
    """
    may_hold = True
    while True:
        try:
            may_hold = await fetch(may_hold)
        except RedisConnectionClosed:
            return
        except RedisConnectionLost:
            may_hold = True
            if not await _are_back(connections):
                return
        except ResponseError as exc:
            may_hold = True
            log.warning("queues_not_read", error=str(exc))
            await asyncio.sleep(_PAUSE_SECONDS)
        except Exception:  # a worker that lives and takes nothing would go unnoticed
            may_hold = True
            log.exception("queues_not_read")
            await asyncio.sleep(_PAUSE_SECONDS)


async def _are_back(connections: Sequence[PipelinedConnection]) -> bool:
    """Wait for the connections. False: they were closed."""
    try:
        await asyncio.gather(*(connection.connected() for connection in connections))
    except RedisConnectionClosed:
        return False
    return True
