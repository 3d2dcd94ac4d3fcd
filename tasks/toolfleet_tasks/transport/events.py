"""Buffers task events for Flower: noted during a call, built and published many at once, ten times a second.

The events and their place are in Celery's and kombu's own format; without a listener, nothing is built. In a worker
with connections they go over the connection to the broker's Redis and are not waited for; everywhere else it is the
stock dispatcher, and with RabbitMQ one that never waits for a broker.
"""

import asyncio
import base64
import contextlib
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from celery.app.events import Events
from celery.events.dispatcher import EventDispatcher
from celery.events.event import group_from
from celery.utils.time import utcoffset
from kombu.exceptions import EncodeError
from kombu.serialization import dumps
from pydantic_core import to_json
from redis.exceptions import ResponseError

from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.system import machine_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionClosed
from toolfleet_tasks.worker_runtime import WorkerRuntime

log = get_logger(__name__)

KEPT_AT_MOST = 10_000
"""Events that wait while Redis is away; the oldest are dropped then. Some megabytes, and the last minutes of a busy worker."""
_PAUSE_SECONDS = 0.1  # the delay is not noticed, and a busy worker has hundreds of events for one message
_MULTI = "task.multi"  # what listeners of tasks' events listen to
_BATCH = 500  # events a message: building it takes a few milliseconds of the loop

Event = dict[str, Any]
Describe = Callable[[], Event]
"""Builds a task's event, `type` among its fields, once it has a receiver."""


class FleetEvents(Events):
    """Set by `events_cls` of the app."""

    dispatcher_cls = "toolfleet_tasks.transport.events:FleetDispatcher"


class RabbitMqEvents(Events):
    """The same where RabbitMQ is the broker."""

    dispatcher_cls = "toolfleet_tasks.transport.events:RabbitMqDispatcher"


class RabbitMqDispatcher(EventDispatcher):
    """Celery's dispatcher, which keeps for later what cannot be sent: its heartbeats would have all calls wait until the broker is back."""

    def send(
        self,
        type: str,
        *,
        blind: bool = False,
        **fields: Any,
    ) -> None:
        """Send an event, or keep it."""
        super().send(type, blind=blind, **{**fields, "retry": False})


class FleetDispatcher(EventDispatcher):
    """Celery's dispatcher; that of a worker with connections has an outbox. The app has `settings`."""

    _outbox: "EventBuffer | None" = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        here = worker_runtime.current()
        if here is not None and self.buffer_group:  # not one made for a single event
            self._outbox = here.part(_make_outbox, self)

    def send(
        self,
        type: str,
        *,
        blind: bool = False,
        **fields: Any,
    ) -> None:
        """Send an event, soon. Never waits, and raises nothing, in a worker with connections."""
        if self._outbox is None:
            super().send(type, blind=blind, **fields)
        elif self.enabled and (not self.groups or group_from(type) in self.groups):
            event = {name: value for name, value in fields.items() if name not in _OPTIONS}
            if blind:
                event["clock"] = None
            self._outbox.note({**event, "type": type}, is_of_task=group_from(type) == "task")

    def tell(self, *described: Describe) -> None:
        """Send tasks' events as `send` does, but have them built only if there is a listener; in a worker with connections."""
        if self._outbox is not None and self.enabled and (not self.groups or "task" in self.groups):
            self._outbox.note(*described)


class EventBuffer:
    """The events of one worker that wait to be published. Belongs to its loop's thread.

    `topic` is what kombu's topics of the exchange begin with, the routing key follows. `sender` is in every event. `clock`:
    Celery's, by which listeners know an event.
    """

    def __init__(
        self,
        here: WorkerRuntime,
        connection: PipelinedConnection,
        *,
        topic: str,
        exchange: str,
        sender: Event,
        serializer: str,
        clock: Any,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._topic = topic
        self._exchange = exchange
        self._sender = sender
        self._serializer = serializer
        # With the time at which it happened, and first whether it is a task's.
        self._noted: deque[tuple[bool, float, Event | Describe]] = deque()
        self._dropped = 0
        self._is_heard = True  # whether the last of the tasks' events had a receiver
        self._has_changed = asyncio.Event()
        self._is_publishing = asyncio.Lock()
        self._task = here.loop.create_task(self._run(), name="toolfleet-events")
        here.settle.append(self.close)

    def note(self, *events: Event | Describe, is_of_task: bool = True) -> None:
        """Publish the events with the next ones; `type` is among their fields."""
        now, noted = machine_clock.wall(), self._noted
        if not noted:
            self._has_changed.set()
        for event in events:
            noted.append((is_of_task, now, event))
        while len(noted) > KEPT_AT_MOST:
            noted.popleft()
            self._dropped += 1

    async def close(self) -> None:
        """Publish what was noted, and then no more."""
        try:
            await self._publish_all()
        finally:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._has_changed.wait()
            await asyncio.sleep(_PAUSE_SECONDS)
            self._has_changed.clear()
            await self._publish_all()

    async def _publish_all(self) -> None:
        async with self._is_publishing:
            while self._noted:
                if self._is_heard:
                    await self._publish(*self._next_batch(_BATCH))
                else:  # no more is built than it takes to learn of a listener
                    waiting = len(self._noted) - 1
                    routing_key, events = self._next_batch(1)
                    await self._publish(routing_key, events)
                    if routing_key == _MULTI and not self._is_heard:
                        self._drop_tasks(waiting)
            if self._dropped:
                log.warning("events_dropped", events=self._dropped)
                self._dropped = 0

    def _next_batch(self, most: int) -> tuple[str, list[Event]]:
        """The oldest events that may share a message, and its routing key: those of tasks do, as everywhere in Celery."""
        is_of_task, first = self._noted[0][0], self._built(*self._noted.popleft())
        if not is_of_task:
            return first["type"].replace("-", "."), [first]
        batch = [first]
        while self._noted and len(batch) < most and self._noted[0][0]:
            batch.append(self._built(*self._noted.popleft()))
        return _MULTI, batch

    def _drop_tasks(self, count: int) -> None:
        """Drop the tasks' events at the beginning of so many: there is no listener."""
        while count > 0 and self._noted and self._noted[0][0]:
            self._noted.popleft()
            count -= 1

    def _built(self, _: bool, happened_at: float, noted: Event | Describe) -> Event:  # noqa: FBT001 - as it is noted
        event = noted() if callable(noted) else noted
        event.setdefault("timestamp", happened_at)
        if "clock" not in event:
            event["clock"] = self._clock.forward()
        return event

    async def _publish(self, routing_key: str, events: list[Event]) -> None:
        sender = {**self._sender, "utcoffset": utcoffset()}
        built = [sender | event for event in events]
        try:
            message = self._message(routing_key, built if routing_key.endswith(".multi") else built[0])
        except EncodeError as exc:
            if len(events) == 1:
                self._is_heard = True  # it has told nothing of listeners
                log.warning("event_not_published", type=events[0]["type"], error=str(exc))
            else:
                for event in events:
                    await self._publish(routing_key, [event])
            return
        try:
            # Twice, if the connection is lost before the answer: listeners know an event by its clock.
            listeners = await self._connection.execute("PUBLISH", f"{self._topic}{routing_key}", message)
            if routing_key == _MULTI:
                self._is_heard = listeners > 0
        except (ResponseError, RedisConnectionClosed) as exc:
            log.warning("events_not_published", events=len(events), error=str(exc))

    def _message(self, routing_key: str, content: Event | list[Event]) -> str:
        """As kombu's virtual transports write it."""
        content_type, encoding, octets = self._written(content)
        envelope = json.dumps(
            {
                "content-encoding": encoding,
                "content-type": content_type,
                "headers": {"hostname": self._sender["hostname"]},
                "properties": {
                    "delivery_mode": 1,
                    "delivery_info": {"exchange": self._exchange, "routing_key": routing_key},
                    "priority": 0,
                    "body_encoding": "base64",
                    "delivery_tag": str(randomness.uuid4()),
                },
            }
        )
        # The encoder would look at each character of the body, and base64 has none that JSON escapes.
        return f'{{"body": "{base64.b64encode(octets).decode()}", {envelope[1:]}'

    def _written(self, content: Event | list[Event]) -> tuple[str, str, bytes]:
        """Content type, encoding and text. Raises `EncodeError`."""
        if self._serializer == "json" and isinstance(content, list):  # tasks' events: texts and numbers only
            with contextlib.suppress(ValueError):  # a lone surrogate
                return "application/json", "utf-8", to_json(content)
        content_type, encoding, body = dumps(content, serializer=self._serializer)
        return str(content_type), str(encoding), body if isinstance(body, bytes) else body.encode()


_OPTIONS = frozenset({"utcoffset", "retry", "retry_policy", "Event"})  # of the stock `send`: how, not what


def _make_outbox(here: WorkerRuntime, dispatcher: Any) -> EventBuffer:
    """Make the outbox, which outlives Celery's connections and dispatchers."""
    settings, exchange = dispatcher.app.settings, dispatcher.exchange.name
    reached_by = {"url": settings.broker, "master": settings.sentinel_master}
    database = connection_factory(**reached_by)().db
    return EventBuffer(
        here,
        here.to(**reached_by),
        topic=f"{settings.key_prefix}/{database}.{exchange}/",
        exchange=exchange,
        sender={"hostname": dispatcher.hostname, "pid": dispatcher.pid},
        serializer=dispatcher.serializer,
        clock=dispatcher.clock,
    )
