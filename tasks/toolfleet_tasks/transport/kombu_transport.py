"""Carries messages between Celery and Redis: kombu's transport and its channels, adapted to the worker's own connections.

Celery's `broker_transport` would do, too, but it replaces the scheme of the URL, by which Flower knows a Redis, and kombu
whether to use TLS.

In a worker (a process with `connections`) messages are taken by the `fetcher`, held by `leases`, and broadcasts are heard over the
same connection; all of them outlive a broken connection, of which Celery is not told. Anywhere else (agents, beat, Flower,
`celery inspect`) it is kombu's own transport, except that it notifies a queue's workers when it publishes a message.

What it needs of kombu's internals is pinned by `tests/integration/tasks/transport/test_kombu_contract.py`, for the versions of `KOMBU`.
"""

import asyncio
import functools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import kombu
from celery.app.amqp import AMQP
from celery.worker import state
from kombu.connection import Connection, ConnectionPool, PooledConnection
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import dumps, loads
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.broker import RabbitMqTlsTransport, RabbitMqTransport
from toolfleet_tasks.fairness import PausedQueues
from toolfleet_tasks.greenlet_bridge import Bridge, await_, in_bridge, retry_blocking
from toolfleet_tasks.queues import queue_of
from toolfleet_tasks.redis_connection import Part, PipelinedConnection, Push, RedisConnectionLost
from toolfleet_tasks.transport import scripts
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
        self.burst_intake = BurstFetcher(
            self,
            self.fetcher,
            connection=connection,
            blocking=runtime.to_broker("burst bell"),
            notify_prefix=keys.notify_key(""),
        )
        if runtime.intake is None:
            runtime.intake = self
        self.broadcasts = Broadcasts(self, connection=runtime.to_broker("broadcasts"), prefix=keys.prefix)
        runtime.listeners.append(self.broadcasts.take)
        runtime.resting.on_end.append(self.fetcher.wake)
        self._tasks = [
            runtime.loop.create_task(self.fetcher.run(), name="toolfleet-intake"),
            runtime.loop.create_task(self.burst_intake.run(), name="toolfleet-burst-intake"),
            runtime.loop.create_task(self.broadcasts.run(), name="toolfleet-broadcasts"),
        ]

    def update(self) -> None:
        """The channel consumes other queues, or listens to other topics, or the pool has another size, than before."""
        if self._channel.active_queues:  # remote control has a channel of its own, and makes others
            self._runtime.intake = self
        self._slots.resize(self._runtime.capacity())
        self.broadcasts.listen()
        self.fetcher.wake()

    def queues(self) -> Sequence[str]:
        """Implements `Consumer.queues`."""
        return self._consumed.names

    def capacity(self) -> int:
        """Implements `Consumer.capacity`."""
        return self._slots.open

    def burst(self) -> tuple[Sequence[str], int]:
        """Implements `Consumer.burst`."""
        return ((), 0) if self._slots.open > 0 else self._slots.capacities_of(self.queues())

    def expect(self, count: int) -> None:
        """Implements `Consumer.expect`."""
        self._slots.expect(count)

    def deliver(self, message: dict[str, Any], queue: str) -> Bridge[None] | None:
        """Implements `Consumer.deliver`. A queue that is consumed no longer, or not now, gets it back."""
        transport = self._channel.connection
        if queue not in transport._callbacks or queue in self._runtime.resting.names:  # noqa: SLF001
            self.leases.requeue([message["properties"]["delivery_tag"]], begun=False)
        elif self._runtime.take(message):
            self._take_slot(message["properties"]["delivery_info"]["routing_key"])
        else:  # Celery's stored result of a refused call is written without blocking the loop
            return Bridge(transport._deliver, message, queue)  # noqa: SLF001
        return None

    def forget(self, tag: str) -> None:
        """Implements `Consumer.forget`."""
        message = self._channel.qos._delivered.pop(tag, None)  # noqa: SLF001
        if message is not None:
            self._let_go(message)

    def delivered(self, message: Any) -> None:
        """The channel holds one message more."""
        if isinstance(message.headers.get("eta"), str):
            self._slots.defer(message.delivery_tag)
        else:
            self._take_slot(message.delivery_info["routing_key"])

    def acknowledge(self, message: Any) -> None:
        """Forget a delivered message for good."""
        self.leases.ack(message.delivery_tag)
        self._let_go(message)

    def reject(self, message: Any, *, requeue: bool) -> None:
        """Give a delivered message back, or quarantine it if no worker can run it."""
        self._let_go(message)
        if requeue:
            self.leases.requeue([message.delivery_tag], begun=True)
        else:
            queue, item = message.delivery_info["routing_key"], _written_down(message)
            self.fetcher.set_aside(message.delivery_tag, queue, item, "refused by the worker")

    def _take_slot(self, queue: str) -> None:
        if self._slots.take(queue):
            self.burst_intake.begin()

    def _let_go(self, message: Any) -> None:
        intake, queue = self._runtime.intake, message.delivery_info["routing_key"]  # another one after a reconnect
        if self._slots.give_back(message.delivery_tag, queue):
            intake.burst_intake.wake()
        if self._runtime.bounds:
            self.fetcher.release_slot(queue, message.headers["id"])
        intake.fetcher.wake()

    def topics(self) -> Iterable[str]:
        """Return the topics of the channel's broadcasts."""
        channel = self._channel
        return [topic for queue in channel.active_fanout_queues for topic in channel._get_subscribe_topics(queue)]  # noqa: SLF001

    def hear(self, exchange: str, message: dict[str, Any]) -> None:
        """Deliver a broadcast to the channel."""
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
                self._let_go(delivered.pop(tag))
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
        self._names = tuple[str, ...]()

    @property
    def names(self) -> Sequence[str]:
        """The names, each once."""
        active, rest = self._channel._active_queues, self._resting.names  # noqa: SLF001 - changes with what is asked for below
        if active != self._active or rest is not self._rest:
            self._active, self._rest = [*active], rest
            self._names = tuple(dict.fromkeys(queue for queue in self._channel.active_queues if queue not in rest))
        return self._names


KOMBU = "5.7."
"""How the kombu versions begin that the contract tests have seen."""

_REPLIES = ".reply.celery.pidbox"  # ends the names of queues that no worker consumes


class FleetQoS(kombu_redis.QoS):
    """The delivered messages of a channel. In a worker, Redis was told when they were reserved."""

    _delivered: OrderedDict[Any, Any]

    def append(self, message: Any, delivery_tag: str) -> None:
        """Note a delivered message."""
        if self.channel.adapter is None:
            super().append(message, delivery_tag)  # type: ignore[no-untyped-call] # kombu is only partly typed
        else:
            message._raw.pop("body")  # noqa: SLF001 - decoded by now; thousands of calls wait here with all that they have
            self.channel.adapter.delivered(message)
            virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Forget a message for good."""
        adapter = self.channel.adapter
        if adapter is None:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call] # as above
        elif (message := self._delivered.pop(delivery_tag, None)) is not None:
            adapter.acknowledge(message)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's signature
        """Give a message back, or quarantine it if no worker can run it."""
        adapter = self.channel.adapter
        if adapter is None:
            super().reject(delivery_tag, requeue=requeue)  # type: ignore[no-untyped-call] # as above
            return
        if (message := self._delivered.pop(delivery_tag, None)) is not None:
            adapter.reject(message, requeue=requeue)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Do nothing in a worker, where leases outlive the channel: see `FleetChannel.close`."""
        if self.channel.adapter is None:
            super().restore_unacked_once(stderr=stderr)  # type: ignore[no-untyped-call] # as above
        else:
            self._on_collect.cancel()


class _Adapted:
    """A mixin of both channel classes, with and without Sentinel."""

    QoS = FleetQoS
    adapter: ChannelAdapter | None = None

    def basic_consume(self: Any, queue: str, *args: Any, **kwargs: Any) -> Any:
        """Consume a queue, or listen to a fanout exchange."""
        if self.adapter is None and self.connection.runtime is not None:
            self.adapter = ChannelAdapter(self, self.connection.runtime)
        tag = super().basic_consume(queue, *args, **kwargs)  # type: ignore[misc] # kombu's channel
        if self.adapter is not None:
            self.adapter.update()
        return tag

    def basic_qos(self: Any, *args: Any, **kwargs: Any) -> None:
        """Change how many messages may be delivered."""
        super().basic_qos(*args, **kwargs)  # type: ignore[misc] # as above
        if self.adapter is not None:
            self.adapter.update()

    def _update_queue_cycle(self: Any) -> None:
        # Kombu lists all queues again for each that is consumed, for a BRPOP that a worker of ours does not send.
        if self.adapter is None:
            super()._update_queue_cycle()  # type: ignore[misc] # as above

    def get_table(self: Any, exchange: str) -> list[tuple[str, ...]]:
        """The bindings of an exchange: of a worker's answers, read without holding up its loop, none if Redis is away."""
        connection = self._workers_connection()
        if connection is None:
            return super().get_table(exchange)  # type: ignore[misc, no-any-return] # as above
        key = Keys(self.global_keyprefix).prefix + self.keyprefix_queue % exchange
        return [tuple(member.decode().split(self.sep)) for member in await_(_asked(connection, "SMEMBERS", key)) or ()]

    def _put(self: Any, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        connection = self._workers_connection() if queue.endswith(_REPLIES) else None
        if connection is not None:
            await_(_asked(connection, "LPUSH", Keys(self.global_keyprefix).queue(queue), dumps(message)))
            return
        if queue.endswith(_REPLIES) or kwargs.get("_publish_batch") is not None:
            super()._put(queue, message, **kwargs)  # type: ignore[misc] # as above
            return
        keys = Keys(self.global_keyprefix)
        # Kombu's own client would put its prefix before the script's arguments.
        names = {"queue": keys.prefix + queue, "notify_key": keys.notify_key(queue)}
        parameters = scripts.PUBLISH.parameters(**names, message=dumps(message))
        Redis(connection_pool=self.pool).eval(scripts.PUBLISH.text, *parameters)

    def close(self: Any) -> None:
        """Give the connections back, and at the worker's end what it still holds."""
        adapter, was_open = self.adapter, not self.closed
        if adapter is not None and was_open:
            adapter.close()
            if worker_runtime.current() is None:
                self._give_up(adapter)
        super().close()  # type: ignore[misc] # as above

    def _workers_connection(self: Any) -> PipelinedConnection | None:
        """Return a worker's connection, for code of its loop: kombu would try for seconds to send an answer, and all calls would wait."""
        here = worker_runtime.current()
        return here.to_broker() if here is not None and in_bridge() else None

    def _give_up(self: Any, adapter: ChannelAdapter) -> None:
        try:
            adapter.give_up(Redis(connection_pool=self.pool))
        except (RedisError, OSError) as exc:
            # Their leases run out, and other workers put them back.
            log.warning("messages_not_put_back", messages=len(adapter.leases.held), error=str(exc))


class FleetChannel(_Adapted, kombu_redis.Channel):
    """A channel to one Redis."""

    def _connparams(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        found = super()._connparams(asynchronous)  # type: ignore[no-untyped-call] # as above
        # As `sync_client`: fewer round trips with each connection, but for an answer that is needed with TLS.
        found["protocol"] = 2
        return found if self.connection.client.ssl else {**found, "driver_info": None}


class _Registered:
    """A mixin of both transport classes."""

    runtime: WorkerRuntime | None = None

    def register_with_event_loop(self: Any, connection: Any, loop: Any) -> None:
        """Register nothing in a worker, whose messages Celery's hub does not read: see `ChannelAdapter`."""
        self.runtime = worker_runtime.current()
        if self.runtime is None:
            super().register_with_event_loop(connection, loop)  # type: ignore[misc] # kombu's transport


class FleetTransport(_Registered, kombu_redis.Transport):
    """kombu's transport of Redis, with this one's channel."""

    Channel = FleetChannel


class FleetSentinelChannel(_Adapted, kombu_redis.SentinelChannel):
    """A channel to the present Redis master."""


class FleetSentinelTransport(_Registered, kombu_redis.SentinelTransport):
    """The same through Sentinel."""

    Channel = FleetSentinelChannel


_TRANSPORTS = {
    "redis": FleetTransport,
    "rediss": FleetTransport,
    "sentinel": FleetSentinelTransport,
    "amqp": RabbitMqTransport,
    "amqps": RabbitMqTlsTransport,
}


class _Fleets:
    """A mixin of both kinds of connections over kombu's."""

    def get_transport_cls(self: Any) -> Any:
        """Return our transport class, if there is one."""
        return _TRANSPORTS.get(self.transport_cls) or super().get_transport_cls()  # type: ignore[misc] # kombu's connection


class FleetConnection(_Fleets, Connection):
    """A connection to the broker."""

    def Pool(self, limit: int | None = None, **kwargs: Any) -> ConnectionPool:  # noqa: N802 - kombu's name
        """A pool of connections like this one; a pool of kombu's makes kombu's own ones."""
        return _Pool(self, limit, **kwargs)  # type: ignore[no-untyped-call] # kombu is only partly typed


class _Pooled(_Fleets, PooledConnection):
    pass


class _Pool(ConnectionPool):
    def new(self) -> PooledConnection:
        return _Pooled(self, **dict(self.connection._info(resolve=False)))  # type: ignore[no-untyped-call] # noqa: SLF001 - as kombu's


class FleetAMQP(AMQP):
    """Set as an app's `amqp` where calls travel by our own transport."""

    Connection = FleetConnection

    def _retry_publish(self, publish: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Publish what follows a task: in a worker it is tried until the broker has it, and the loop goes on meanwhile.

        The task has run and is not acked before, and a message that is there twice does no harm.
        """
        send = functools.partial(super()._retry_publish, publish, *args, **kwargs)
        return retry_blocking(send) if in_bridge() else send()


class RabbitMqAMQP(AMQP):
    """Set as an app's `amqp` where RabbitMQ is the broker."""

    Connection = FleetConnection


def require_kombu() -> None:
    """Raise `SettingsError` if this kombu was never tested with the transport."""
    if not kombu.__version__.startswith(KOMBU):
        raise SettingsError(
            f"The Redis transport is made for kombu =={KOMBU}*, and this is {kombu.__version__}: "
            f"pip install 'kombu=={KOMBU}*'"
        )


def _written_down(message: Any) -> bytes:
    body = message.body.decode(errors="backslashreplace") if isinstance(message.body, bytes) else message.body
    try:
        return str(dumps({**message._raw, "body": body})).encode()  # noqa: SLF001 - what was delivered
    except (RecursionError, TypeError, ValueError) as exc:  # it could be read, but only just
        return repr(exc).encode()


async def _asked(connection: PipelinedConnection, *command: Part) -> Any:
    """The reply, or `None` if there is none: an answer to remote control that gets lost is asked for again."""
    try:
        return await connection.send(*command)
    except (RedisConnectionLost, ResponseError) as exc:
        log.warning("answer_not_sent", error=str(exc))
        return None
