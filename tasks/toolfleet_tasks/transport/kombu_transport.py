"""Extends kombu's Redis transport with a worker's side that never waits, and gives it to Celery's app.

Celery's `broker_transport` would do, too, but it replaces the scheme of the URL, by which Flower knows a Redis, and kombu
whether to use TLS.

In a worker (a process with `connections`) messages are taken by the `fetcher`, held by `leases`, and broadcasts are heard over the
same connection; all of them outlive a broken connection, of which Celery hears nothing. Anywhere else (agents, beat, Flower,
`celery inspect`) it is kombu's own transport, but that it notifies a queue's workers when it puts something in.

What it needs of kombu's internals is pinned by `tests/integration/tasks/transport/test_kombu_contract.py`, for the versions of `KOMBU`.
"""

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import kombu
from celery.app.amqp import AMQP
from kombu.connection import Connection, ConnectionPool, PooledConnection
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import dumps
from packaging.specifiers import SpecifierSet
from pydantic_core import from_json
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.broker import RabbitMqTlsTransport, RabbitMqTransport
from toolfleet_tasks.greenlet_bridge import await_, in_bridge, retry_blocking
from toolfleet_tasks.messages.envelope import TASK
from toolfleet_tasks.redis_connection import Part, PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.transport import scripts
from toolfleet_tasks.transport.channel_adapter import ChannelAdapter
from toolfleet_tasks.worker_runtime import WorkerRuntime

log = get_logger(__name__)

KOMBU = SpecifierSet("==5.7.*")
"""The kombu versions that the contract tests have seen."""

_REPLIES = ".reply.celery.pidbox"  # ends the names of queues that no worker consumes


class FleetMessage(virtual.Message):
    """A message whose body is read in a fraction of the time, if it is a call's."""

    def _decode(self) -> Any:
        if self.headers.get("task") == TASK and self.content_type == "application/json":
            with contextlib.suppress(ValueError):  # kombu's decoder has its own words for it
                return from_json(self.body or b"")  # one string of ours: no objects to look for
        return super()._decode()  # type: ignore[no-untyped-call] # kombu is only partly typed


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
        if self.channel.adapter is None:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call] # as above
        else:
            self._let_go(delivery_tag)
            self.channel.adapter.leases.ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's signature
        """Give a message back, or quarantine it if no worker can run it."""
        adapter = self.channel.adapter
        if adapter is None:
            super().reject(delivery_tag, requeue=requeue)  # type: ignore[no-untyped-call] # as above
            return
        message = self._delivered.get(delivery_tag)
        self._let_go(delivery_tag)
        if requeue:
            adapter.leases.requeue([delivery_tag], begun=True)
        elif message is not None:
            queue = message.delivery_info["routing_key"]
            adapter.fetcher.set_aside(delivery_tag, queue, _written_down(message), "refused by the worker")

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Do nothing in a worker, where leases outlive the channel: see `FleetChannel.close`."""
        if self.channel.adapter is None:
            super().restore_unacked_once(stderr=stderr)  # type: ignore[no-untyped-call] # as above
        else:
            self._on_collect.cancel()

    def _let_go(self, tag: str) -> None:
        self.channel.adapter.let_go(self._delivered.pop(tag, None))


class _Adapted:
    """A mixin of both channel classes, with and without Sentinel."""

    QoS = FleetQoS
    Message = FleetMessage
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


class _Registered:
    """A mixin of both transport classes."""

    runtime: WorkerRuntime | None = None

    def register_with_event_loop(self: Any, connection: Any, loop: Any) -> None:
        """Register nothing in a worker, whose messages Celery's hub does not read: see `transport/channel_adapter.py`."""
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


class FleetAMQP(AMQP):  # type: ignore[misc] # Celery ships no types
    """Set as an app's `amqp` where calls travel by our own transport."""

    Connection = FleetConnection

    def _retry_publish(self, publish: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Publish what follows a task: in a worker it is tried until the broker has it, and the loop goes on meanwhile.

        The task has run and is not acked before, and a message that is there twice does no harm.
        """
        send = functools.partial(super()._retry_publish, publish, *args, **kwargs)
        return retry_blocking(send) if in_bridge() else send()


class RabbitMqAMQP(AMQP):  # type: ignore[misc] # as above
    """Set as an app's `amqp` where RabbitMQ is the broker."""

    Connection = FleetConnection


def require_kombu() -> None:
    """Raise `SettingsError` if this kombu was never tested with the transport."""
    if not KOMBU.contains(kombu.__version__, prereleases=True):
        raise SettingsError(
            f"The Redis transport is made for kombu {KOMBU}, and this is {kombu.__version__}: "
            f"pip install 'kombu{KOMBU}'"
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
