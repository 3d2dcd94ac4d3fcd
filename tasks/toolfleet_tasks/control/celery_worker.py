"""Sets up Celery's worker process, without what a fleet has no use for, and without people's data in its log."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from celery.apps.worker import Worker
from celery.worker import state
from celery.worker.consumer import Consumer, consumer
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import MasterDownError, OutOfMemoryError, ReadOnlyError

from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.messages.envelope import TASK

log = get_logger(__name__)

_PAUSE_SECONDS = 1.0  # between two tries to connect: Celery's own grow to half a minute

_NO_HEADERS: Mapping[str, Any] = {}

_PASSING = (OutOfMemoryError, ReadOnlyError, MasterDownError)
"""What a Redis answers that takes no writes for now: it is full, or no master. A worker that starts just then tries again."""

HIDDEN = "(…)"
"""In place of arguments that whoever published them has not hidden."""


class FleetWorker(Worker):  # type: ignore[misc] # Celery ships no types
    """Celery's worker without its slow start: it neither asks other workers for their logical clocks, which takes a second, nor gossips."""

    def prepare_args(self, **kwargs: Any) -> dict[str, Any]:
        """As Celery's command line gives them, but for these two."""
        args: dict[str, Any] = super().prepare_args(**kwargs)
        return args | {"without_mingle": True, "without_gossip": True}


class FleetConsumer(Consumer):  # type: ignore[misc] # as above
    """Set by `worker_consumer`. Calls go on while RabbitMQ is away; what cannot be taken for a task is logged without arguments."""

    event_dispatcher: Any
    """Celery's; has a connection of its own. `None` between two connections."""

    connection_errors: tuple[type[BaseException], ...]
    """Those after which Celery connects anew; after any other one it ends the worker."""

    waits_for_broker = False
    """Whether it tries to connect, for as long as that takes: Celery's loop stands still meanwhile. For any thread to read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connection_errors = (*self.connection_errors, *_PASSING)

    def create_task_handler(self, *args: Any, **options: Any) -> Any:
        """As Celery's. A call goes a shorter way, where its strategy has one."""
        usual = super().create_task_handler(*args, **options)

        def take(message: Any) -> None:
            receive = getattr(self.strategies.get(TASK), "receive", None)
            if receive is None or (message.headers or _NO_HEADERS).get("task") != TASK or not receive(message):
                usual(message)

        return take

    def ensure_connected(self, conn: Any) -> Any:
        """As Celery's. While RabbitMQ is away, the pool's calls go on: they need it no more."""
        self.waits_for_broker = True
        try:
            pool: Any = self.pool
            if conn.transport.driver_type != "amqp" or not hasattr(pool, "wait_for"):
                return super().ensure_connected(conn)
            _connect(conn, pool.wait_for)
            self.first_connection_attempt = False
            return conn
        finally:
            self.waits_for_broker = False

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """As Celery's; with a pause where Redis takes no writes."""
        super().on_connection_error_before_connected(exc)
        self._pause_after(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """As Celery's. The connection that events go over gets no goodbye, either: a half-open one would not answer it."""
        if self.event_dispatcher is not None and self.event_dispatcher.connection:
            self.event_dispatcher.connection.collect()
        super().on_connection_error_after_connected(exc)
        self._pause_after(exc)

    def _pause_after(self, exc: Exception) -> None:
        if isinstance(exc, _PASSING):
            log.error("worker_waits_for_redis", error=str(exc))
            pool: Any = self.pool
            if hasattr(pool, "wait_for"):
                pool.wait_for(asyncio.sleep(_PAUSE_SECONDS))

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """As Celery's."""
        super().on_decode_error(_hidden(message), exc)

    def on_unknown_message(self, body: object, message: Any) -> None:
        """As Celery's."""
        super().on_unknown_message(body, _hidden(message))

    def on_unknown_task(self, body: object, message: Any, exc: Exception) -> None:
        """As Celery's."""
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


consumer.dump_body = _size_of_body  # which the methods above log
