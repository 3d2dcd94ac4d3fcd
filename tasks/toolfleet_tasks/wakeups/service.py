"""Offers an agent what it has to do with wake-ups, over one loop's connections."""

import math
from collections.abc import Callable

from toolfleet_registry.settings import Settings
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.wakeups.core_watch import CoreWatch
from toolfleet_tasks.wakeups.inbox import CompletionInbox
from toolfleet_tasks.wakeups.stream import Reader


class WakeupService:
    """`connect` makes a connection of that name, which is not started yet."""

    def __init__(
        self, connection: PipelinedConnection, connect: Callable[[str, str], PipelinedConnection], settings: Settings
    ) -> None:
        self._seal = seal_of(settings, purpose="job")
        self._connection = connection
        self._connect = connect
        self._settings = settings
        self._connections: list[PipelinedConnection] = []
        self._watch = CoreWatch(connection, settings.keys)

    def reader(
        self, conversation_id: str, consumer: str | None, on_lost: Callable[[int], object] | None = None
    ) -> Reader:
        """Return a reader of the conversation's wake-ups; many may read concurrently."""
        return Reader(
            self._settings.keys,
            conversation_id,
            seal=self._seal,
            connection=self._connection,
            connect=self._own_connection,
            check_core=self._watch.check,
            consumer=consumer,
            on_lost=on_lost,
        )

    def inbox(self, conversation_id: str, user_id: str | None) -> CompletionInbox:
        """The user's news of the conversation, to be read and confirmed; needs no connection of its own."""
        return CompletionInbox(
            self._settings.keys,
            conversation_id,
            user_id,
            seal=self._seal,
            connection=self._connection,
            check_core=self._watch.check,
            kept_seconds=math.ceil(self._settings.completions_kept_seconds),
        )

    async def aclose(self) -> None:
        """End all readers."""
        for connection in self._connections:
            await connection.aclose()

    def _own_connection(self) -> PipelinedConnection:
        self._connections = [connection for connection in self._connections if not connection.is_closed]
        connection = self._connect(str(self._settings.redis_url), "completions")
        self._connections.append(connection)
        connection.start()
        return connection
