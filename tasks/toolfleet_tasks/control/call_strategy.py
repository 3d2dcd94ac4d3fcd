"""Receives a call's message in Celery's consumer by a shorter path, if Celery's own strategy has nothing to do for it.

Messages that are to start later, expire, were revoked, are rate-limited, or that a listener of Celery's signals or log
needs take Celery's own path, and so does everything with RabbitMQ. Both paths end in the pool with a request that
Celery can inspect and stop.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

from celery import signals
from celery.app.trace import fast_trace_task
from celery.worker import state, strategy
from kombu.exceptions import ContentDisallowed, DecodeError

from toolfleet_registry.time import machine_clock
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.control.celery_request import FleetRequest

TaskHandler = Callable[..., object]
"""What Celery's consumer gives a task's messages to: message, body, what acks it, what rejects it, and who else is to hear of it."""

_PARTS = 3  # of a body: arguments, named arguments, and what follows


class ReceivedCall(FleetRequest):
    """A request that came the short way. It is acked where it ends: nothing in a worker waits for an ack."""

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """As Celery's."""
        if self._terminate_on_ack is not None:
            super().on_accepted(pid, time_accepted)
            return
        self.worker_pid = pid
        self.time_start = machine_clock.wall() - (machine_clock.monotonic() - time_accepted)
        state.requests[self.id] = self
        state.active_requests.add(self)
        state.total_count[self.name] += 1
        state.all_total_count[0] += 1
        self.send_event("task-started")

    def on_success(self, outcome: tuple[Any, Any, float], **more: Any) -> None:
        """As Celery's, but that it keeps no list of those that have ended well: the ledger knows."""
        failed, shown, runtime = outcome
        if failed:
            super().on_success(outcome, **more)
            return
        state.task_ready(self)
        self.acknowledge()
        self.send_event("task-succeeded", result=shown, runtime=runtime)

    def described(self) -> dict[str, Any]:
        """Return the content of the event about its message."""
        return {
            "uuid": self.id,
            "name": self.name,
            "args": self.argsrepr,
            "kwargs": self.kwargsrepr,
            "root_id": self.root_id,
            "parent_id": self.parent_id,
            "retries": self.request_dict.get("retries", 0),
            "eta": None,
            "expires": None,
        }


def call_strategy(task: Any, app: Any, consumer: Any) -> TaskHandler:
    """Set by `Strategy` of the task."""
    usual: TaskHandler = strategy.default(task, app, consumer)
    is_ours = (
        worker_runtime.current() is not None and app.settings.has_redis_broker and hasattr(consumer.pool, "run_request")
    )
    if not (is_ours and app.use_fast_trace_task) or strategy.logger.isEnabledFor(logging.INFO):
        return usual
    return CallStrategy(task, app, consumer, usual)


class CallStrategy:
    """The short way, and the `usual` one for messages that it is not for. Celery makes one for each connection."""

    def __init__(self, task: Any, app: Any, consumer: Any, usual: TaskHandler) -> None:
        self._consumer, self._name, self._usual = consumer, task.name, usual
        self._events = events = consumer.event_dispatcher
        self._tells = bool(events and events.enabled and task.send_events)
        self._named = {"app": app, "task": task, "hostname": consumer.hostname, "eventer": events}
        self._named |= {"connection_errors": consumer.connection_errors, "utc": app.uses_utc_timezone()}

    def __call__(self, message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> object:
        """As Celery calls it."""
        if body is not None or callbacks or not self._is_plain(message):
            return self._usual(message, body, ack, reject, callbacks)
        self._take(message, ack, reject)
        return None

    def receive(self, message: Any) -> bool:
        """Take a message if it is plain, without what Celery makes for an ack; False, and nothing has happened, for any other."""
        consumer = self._consumer
        # After a restart Celery counts by the acks how many messages it may have.
        if consumer.restart_count or consumer.on_task_message or not self._is_plain(message):
            return False
        self._take(message, message.ack_log_error, message.reject_log_error)
        return True

    def _take(self, message: Any, ack: Any, reject: Any) -> None:
        request = ReceivedCall(
            message, on_ack=ack, on_reject=reject, body=message.body, headers=message.headers, **self._named
        )
        if self._tells:
            self._events.tell("task-received", request.described)
        state.task_reserved(request)
        request._apply_result = ref(self._consumer.pool.run_request(fast_trace_task, request))  # noqa: SLF001 - as Celery does

    def _is_plain(self, message: Any) -> bool:
        """Return whether Celery would do nothing with the message but pass it to the pool."""
        headers: Mapping[str, Any] = message.headers
        if headers.get("eta") is not None or headers.get("expires") is not None or headers.get("stamped_headers"):
            return False
        if headers["id"] in state.revoked or signals.task_received.receivers:
            return False
        if self._consumer.task_buckets[self._name] is not None:
            return False
        try:
            content = message.payload
        except (DecodeError, ContentDisallowed):  # for Celery to say
            return False
        return isinstance(content, list) and len(content) == _PARTS
