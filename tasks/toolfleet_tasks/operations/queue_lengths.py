"""Asks RabbitMQ how many messages wait in its queues, over a connection that is kept from one reading to the next."""

from collections.abc import Sequence

from amqp.exceptions import NotFound
from kombu.connection import Connection

from toolfleet_registry.errors import BrokerUnavailable
from toolfleet_registry.settings import Settings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.broker.kombu_connections import KombuConnections
from toolfleet_tasks.operations.broker_question import ask_broker


class QueueLengths:
    """Those of the settings' broker, which is no Redis. Close it at the end."""

    def __init__(self, settings: Settings) -> None:
        self._connections = KombuConnections(make_app(settings, stores_results=False))

    async def read(self, queues: Sequence[str], *, seconds: float) -> list[int]:
        """How many messages wait in each of them, without those that workers hold. Raises `BrokerAway` after so long."""
        return await ask_broker(lambda: self._ask(queues), seconds=seconds)

    def close(self) -> None:
        """Let go of the connection; what a thread still asks is not waited for."""
        self._connections.close()

    def _ask(self, queues: Sequence[str]) -> list[int]:
        with self._connections.one() as connection:
            try:
                return _lengths(connection, queues)
            except Exception as exc:  # whatever kombu and its transports raise
                raise BrokerUnavailable(str(exc) or repr(exc), passes=True) from exc


def _lengths(connection: Connection, queues: Sequence[str]) -> list[int]:
    """Over one channel: RabbitMQ closes it when it is asked for a queue that is not there, and then over another."""
    found, channel = list[int](), None
    for queue in queues:
        channel = channel or connection.channel()
        try:
            found.append(int(channel.queue_declare(queue=queue, passive=True).message_count))
        except NotFound:  # no worker and no agent has needed it yet: nothing waits there
            found.append(0)
            channel = None
    if channel is not None:
        channel.close()
    return found
