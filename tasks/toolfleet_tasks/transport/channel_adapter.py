"""Adapts a kombu channel to the worker's connections: what it consumes comes in here."""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from celery.worker import state
from kombu.utils.json import loads
from redis import Redis

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.fairness import PausedQueues
from toolfleet_tasks.greenlet_bridge import Bridge
from toolfleet_tasks.queues import queue_of
from toolfleet_tasks.redis_connection import PipelinedConnection, Push
from toolfleet_tasks.transport.fetcher import Consumer, Fetcher, NotifyKeys, keep_fetching
from toolfleet_tasks.transport.leases import FetchedClaims, Leases, LeaseStore, write_note
from toolfleet_tasks.transport.reservations import Capacity, Quarantine
from toolfleet_tasks.worker_runtime import WorkerRuntime

log = get_logger(__name__)

_BLOCK_SECONDS = 0.5  # also how long it may listen to a queue that may take no more, or not to one that may again


class ChannelAdapter:
    """Consumer of a fetcher and listener to broadcasts, on behalf of one of kombu's channels."""

    def __init__(self, channel: Any, runtime: WorkerRuntime) -> None:
        self._channel = channel
        self._runtime = runtime
        self._is_closed = False
        self._slots = runtime.slots
        self._consumed = ConsumedQueues(channel, runtime.resting)
        keys = Keys(channel.global_keyprefix)
        connection = runtime.to_broker()
        self.leases = runtime.part(_make_leases, channel, keys)
        self.fetcher = Fetcher(
            self,
            connection=connection,
            notify_keys=NotifyKeys(
                connection, lambda number: runtime.to_broker(f"bells {number}"), keys.notify_key("")
            ),
            leases=self.leases,
            quarantine=Quarantine(keys.quarantine, keys.quarantined),
            bounds={queue_of(name): Capacity(keys.running(name), bound) for name, bound in runtime.bounds.items()},
        )
        self._burst_intake = BurstFetcher(
            self,
            self.fetcher,
            connection=connection,
            blocking=runtime.to_broker("burst bell"),
            notify_prefix=keys.notify_key(""),
        )
        self.broadcasts = Broadcasts(self, connection=runtime.to_broker("broadcasts"), prefix=keys.prefix)
        runtime.listeners.append(self.broadcasts.take)
        runtime.resting.on_end.append(self.fetcher.wake)
        self._tasks = [
            runtime.loop.create_task(self.fetcher.run(), name="toolfleet-intake"),
            runtime.loop.create_task(self._burst_intake.run(), name="toolfleet-burst-intake"),
            runtime.loop.create_task(self.broadcasts.run(), name="toolfleet-broadcasts"),
        ]

    def update(self) -> None:
        """The channel consumes other queues, or listens to other topics, or the pool has another size, than before."""
        self._slots.resize(self._runtime.capacity())
        self.broadcasts.listen()
        self.fetcher.wake()

    def queues(self) -> Sequence[str]:
        """As the fetcher asks."""
        return self._consumed.names

    def capacity(self) -> int:
        """As the fetcher asks."""
        return self._slots.open

    def burst(self) -> tuple[Sequence[str], int]:
        """As the fetchers ask."""
        return ((), 0) if self._slots.open > 0 else self._slots.capacities_of(self.queues())

    def expect(self, count: int) -> None:
        """As the fetchers do."""
        self._slots.expect(count)

    def deliver(self, message: dict[str, Any], queue: str) -> None:
        """As the fetcher does. A queue that is consumed no longer, or not now, gets it back."""
        if queue in self._consumed:
            self._channel.connection._deliver(message, queue)  # noqa: SLF001
        else:
            self.leases.requeue([message["properties"]["delivery_tag"]], begun=False)

    def forget(self, tag: str) -> None:
        """As the fetcher does."""
        self._give_back(self._channel.qos._delivered.pop(tag, None))  # noqa: SLF001
        self.fetcher.wake()

    def delivered(self, message: Any) -> None:
        """The channel holds one message more."""
        if isinstance(message.headers.get("eta"), str):
            self._slots.defer(message.delivery_tag)
            return
        self._slots.take(message.delivery_info["routing_key"])
        if self._slots.open <= 0:
            self._burst_intake.begin()

    def let_go(self, message: Any) -> None:
        """The channel has done with a delivered message, or gives it back; `None` for one that it does not know."""
        if message is not None:
            self._give_back(message)
            self.fetcher.release_slot(message.delivery_info["routing_key"], message.headers["id"])
        self.fetcher.wake()

    def _give_back(self, message: Any) -> None:
        if message is None:
            return
        if self._slots.give_back(message.delivery_tag, message.delivery_info["routing_key"]):
            self._burst_intake.wake()

    def topics(self) -> Iterable[str]:
        """As the broadcasts ask."""
        channel = self._channel
        return [topic for queue in channel.active_fanout_queues for topic in channel._get_subscribe_topics(queue)]  # noqa: SLF001

    def hear(self, exchange: str, message: dict[str, Any]) -> None:
        """As the broadcasts do."""
        self._channel._deliver_fanout_message(message, exchange)  # noqa: SLF001

    def close(self) -> None:
        """Take no more. What Celery has dropped with the connection goes back; what runs goes on, under its lease."""
        if self._is_closed:
            return  # kombu closes a channel again whose first time has failed
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        self._runtime.listeners.remove(self.broadcasts.take)
        self._runtime.resting.on_end.remove(self.fetcher.wake)
        if worker_runtime.current() is self._runtime:
            self.broadcasts.close()
            running = {request.message.delivery_tag for request in tuple(state.active_requests)}
            delivered = self._channel.qos._delivered  # noqa: SLF001
            dropped = set(delivered) - running
            for tag in dropped:
                self._give_back(delivered.pop(tag))
            self.leases.requeue(dropped, begun=False)

    def give_up(self, client: Redis) -> None:
        """Settle over `client` what a worker still holds at its end, when its connections are closed."""
        leases = self.leases
        leases.close()
        unbegun = leases.unbegun
        given_back = leases.requeue_commands(unbegun, begun=False)
        given_back += leases.requeue_commands(leases.held - unbegun, begun=True)
        for command in (*leases.ack_commands(leases.acked), *given_back):
            client.execute_command(*command)


def _make_leases(runtime: WorkerRuntime, channel: Any, keys: Keys) -> Leases:
    """They outlive channels and connections."""
    unacked, index = channel.unacked_key, channel.unacked_index_key
    store = LeaseStore.of(keys, unacked=unacked, unacked_index=index, seconds=channel.visibility_timeout)
    leases = Leases(runtime.to_broker(), store, runtime.loop, runtime.part(FetchedClaims), name=runtime.name)
    write_note(runtime.name)  # before anything is held
    runtime.settle.append(leases.settled)
    runtime.leaving.append(leases.leave)
    leases.show_life(runtime.to_broker("broadcasts"))
    return leases


class Broadcasts:
    """Listens for one listener, over a connection that it shares with others."""

    def __init__(self, listener: ChannelAdapter, *, connection: PipelinedConnection, prefix: str) -> None:
        self._patterns: set[bytes] = set()
        self._listener = listener
        self._connection = connection
        self._prefix = prefix
        self._heard: deque[tuple[str, bytes]] = deque()
        self._has_heard = asyncio.Event()
        connection.on_connect.append(self.listen)

    def listen(self) -> None:
        """Subscribe to all topics: at first, after every reconnect, and when there are more."""
        topics = [self._prefix + topic for topic in self._listener.topics()]
        self._patterns.update(topic.encode() for topic in topics)
        if topics:
            self._connection.tell("PSUBSCRIBE", *topics)

    def take(self, frame: Push) -> None:
        """Take a push frame of the connection; those of others are ignored."""
        if frame[0] == b"pmessage" and frame[1] in self._patterns:
            self._heard.append((frame[2].decode(), frame[3]))
            self._has_heard.set()

    def close(self) -> None:
        """Listen no longer."""
        self._connection.on_connect.remove(self.listen)
        if self._patterns:
            self._connection.tell("PUNSUBSCRIBE", *self._patterns)
            self._patterns.clear()

    async def run(self) -> None:
        """Pass on what was heard, one after the other, until cancelled."""
        while True:
            while self._heard:
                await self._pass_on(*self._heard.popleft())
            self._has_heard.clear()
            await self._has_heard.wait()

    async def _pass_on(self, channel: str, content: bytes) -> None:
        exchange = _exchange_of(channel.removeprefix(self._prefix))
        try:
            await Bridge(self._listener.hear, exchange, loads(content))
        except Exception:
            log.exception("broadcast_failed", channel=channel)


def _exchange_of(channel: str) -> str:
    """Kombu's topics are `/<db>.<exchange>`, some with `/<routing key>` behind."""
    name = channel.partition(".")[2] if channel.startswith("/") else channel
    return name.split("/", 1)[0]


class BurstFetcher:
    """Takes messages for `consumer`, by `fetcher`, on its `connection`; listens on `blocking`.

    It works while the ordinary fetcher sleeps. It has a connection of its own for it, as the ordinary one must be able
    to listen to all notify keys the moment that a slot is free. While slots are free it does nothing.
    """

    def __init__(
        self,
        consumer: Consumer,
        fetcher: Fetcher,
        *,
        connection: PipelinedConnection,
        blocking: PipelinedConnection,
        notify_prefix: str,
    ) -> None:
        self._consumer = consumer
        self._fetcher = fetcher
        self._connection = connection
        self._blocking = blocking
        self._notify_prefix = notify_prefix
        self._has_changed = asyncio.Event()
        self._notification: asyncio.Future[Any] | None = None  # Redis was asked for a notification, and perhaps has

    async def run(self) -> None:
        """Take messages until cancelled, or until a connection is closed."""
        try:
            await keep_fetching(self._fetch, self._connection, self._blocking)
        finally:
            if self._notification is not None:
                self._notification.cancel()  # its result will not be read

    def begin(self) -> None:
        """The slots are full. Costs nothing if this is known already."""
        if self._notification is None:
            self._has_changed.set()

    def wake(self) -> None:
        """Wake up: other queues may go beyond the slots than before, or more calls."""
        self._has_changed.set()

    async def _fetch(self, may_hold: bool) -> bool:  # noqa: FBT001 - as `keep_fetching` calls it
        queues = await self._queues()
        if not may_hold:
            await self._wait_for_notification(queues)
        return await self._fetcher.take(self._consumer.burst)

    async def _queues(self) -> Sequence[str]:
        while True:
            self._has_changed.clear()
            queues, _ = self._consumer.burst()
            if queues:
                return queues
            await self._answered()
            await self._has_changed.wait()

    async def _wait_for_notification(self, queues: Sequence[str]) -> None:
        """Wait for a notification, half a second, or a change."""
        if self._notification is None:
            self._notification = self._blocking.send(
                "BRPOP", *(self._notify_prefix + queue for queue in queues), _BLOCK_SECONDS
            )
            self._notification.add_done_callback(lambda _: self._has_changed.set())
        if not self._notification.done():
            await self._has_changed.wait()
        await self._answered()

    async def _answered(self) -> None:
        """Read Redis's answer, if it is there. A notification for another fetcher is passed on."""
        if self._notification is None or not self._notification.done():
            return
        notification, self._notification = self._notification, None
        token = notification.result()
        if token is None:
            return
        queue = token[0].decode().removeprefix(self._notify_prefix)
        if queue in self._consumer.burst()[0]:
            self._fetcher.notified(queue)
        else:
            await self._blocking.send("LPUSH", token[0], "1")


class ConsumedQueues:
    """The queues of one of kombu's channels that are not paused."""

    def __init__(self, channel: Any, resting: PausedQueues) -> None:
        self._channel = channel
        self._resting = resting
        self._active = list[str]()  # as the channel had them
        self._rest = resting.names
        self._members = dict[str, None]()
        self._names = tuple[str, ...]()

    @property
    def names(self) -> Sequence[str]:
        """The names, each once."""
        self._follow()
        return self._names

    def __contains__(self, queue: str) -> bool:
        self._follow()
        return queue in self._members

    def _follow(self) -> None:
        active, rest = self._channel._active_queues, self._resting.names  # noqa: SLF001 - changes with what is asked for below
        if active != self._active or rest is not self._rest:
            self._active, self._rest = [*active], rest
            self._members = dict.fromkeys(queue for queue in self._channel.active_queues if queue not in rest)
            self._names = tuple(self._members)
