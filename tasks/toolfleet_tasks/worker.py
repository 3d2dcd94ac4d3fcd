"""Celery's worker process, without what a fleet has no use for, and without people's data in its log."""

from typing import Any

from celery.apps.worker import Worker
from celery.worker.consumer import Consumer, consumer

HIDDEN = "(…)"
"""In place of arguments that whoever published them has not hidden."""


class FleetWorker(Worker):  # type: ignore[misc] # Celery ships no types
    """Starts at once: it neither asks other workers for their logical clocks, which takes a second, nor gossips."""

    def prepare_args(self, **kwargs: Any) -> dict[str, Any]:
        """As Celery's command line gives them, but for these two."""
        args: dict[str, Any] = super().prepare_args(**kwargs)
        return args | {"without_mingle": True, "without_gossip": True}


class FleetConsumer(Consumer):  # type: ignore[misc] # as above
    """Set by `worker_consumer`. What cannot be taken for a task is logged without arguments."""

    waits_for_broker = False
    """Whether it tries to connect, for as long as that takes: Celery's loop stands still meanwhile. For any thread to read."""

    def ensure_connected(self, conn: Any) -> Any:
        """As Celery's."""
        self.waits_for_broker = True
        try:
            return super().ensure_connected(conn)
        finally:
            self.waits_for_broker = False

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """As Celery's."""
        super().on_decode_error(_hidden(message), exc)

    def on_unknown_message(self, body: object, message: Any) -> None:
        """As Celery's."""
        super().on_unknown_message(body, _hidden(message))

    def on_unknown_task(self, body: object, message: Any, exc: Exception) -> None:
        """As Celery's."""
        super().on_unknown_task(body, _hidden(message), exc)


def _hidden(message: Any) -> Any:
    shown = {name: HIDDEN for name in ("argsrepr", "kwargsrepr") if name in (message.headers or {})}
    message.headers = {**(message.headers or {}), **shown}
    return message


def _size_of_body(message: Any, body: object) -> str:
    del body
    return f"{len(message.body or '')} bytes"


consumer.dump_body = _size_of_body  # which the methods above log
