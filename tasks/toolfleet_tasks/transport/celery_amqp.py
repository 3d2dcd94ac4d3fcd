"""Makes an app's broker connections use the fleet's transports, under the URL that they have anyway.

Celery's `broker_transport` would do, too, but it replaces the scheme of the URL, by which Flower knows a Redis, and kombu
whether to use TLS.
"""

import functools
from collections.abc import Callable
from typing import Any

from celery.app.amqp import AMQP
from kombu.connection import Connection, ConnectionPool, PooledConnection

from toolfleet_tasks.aio.blocking_retry import retry_blocking
from toolfleet_tasks.aio.greenlet_bridge import in_bridge
from toolfleet_tasks.rabbitmq import RabbitMqTlsTransport, RabbitMqTransport
from toolfleet_tasks.transport.kombu_transport import FleetSentinelTransport, FleetTransport

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
