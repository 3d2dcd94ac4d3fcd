"""Chooses an agent's publisher, over its own connection to Redis or through kombu, and admits calls before they are published."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.errors import BrokerUnavailable, NotPublished
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.admission import AdmissionControl, Refusal
from toolfleet_tasks.presence import ApartReaders
from toolfleet_tasks.queues import CONTROL
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost, unavailable
from toolfleet_tasks.transport.publisher import Delivered, Publisher
from toolfleet_tasks.transport.redis_publisher import RedisPublisher, database_of

_RETRACT_SECONDS = 2.0  # that its caller waits for a call's retraction; that goes on


def agent_publisher(
    admission: AdmissionControl,
    settings: Settings,
    connection: PipelinedConnection,
    *,
    broker_connection: Callable[[], PipelinedConnection],
    listening: Callable[[str], Awaitable[None]],
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    pending: Callable[[], Iterator[PublishedCall]],
) -> Publisher:
    """Make the publisher of calls for these settings.

    `connection` goes to the Redis of the results; `pending` returns the calls that were published and have not ended;
    the rest is as in `AdmittedPublisher`.
    """
    behind = functools.partial(AdmittedPublisher, connection=connection, listening=listening, spawn=spawn)
    if not settings.has_redis_broker:
        # Celery and kombu take a while to import, and most agents need neither.
        from toolfleet_tasks.app import make_app

        return behind(make_app(settings, stores_results=False).publisher, admission)
    database = database_of(connection_factory(str(settings.broker), master=settings.sentinel_master))
    publisher_to = functools.partial(RedisPublisher, keys=settings.keys, database=database, signing=settings)
    if (
        settings.broker == settings.redis_url
    ):  # calls leave where their results arrive, so that Redis hears of who listens before it has the call
        publisher: RedisPublisher = publisher_to(connection, admission=admission)
        publisher.spawn = spawn
        publisher.readers = ApartReaders(
            connection,
            settings,
            is_awaited=lambda: any(True for _ in pending()),
            on_older=lambda: spawn(publisher.publish_for_all(pending())),
        )
        return publisher
    return behind(publisher_to(broker_connection()), admission)


class AdmittedPublisher:
    """A publisher with admission control, for brokers that cannot judge calls: a call is admitted at the Redis of `connection`, which costs a round trip, then published.

    The broker knows the lengths of the queues. `listening` waits until a call's end is heard, with any way of publishing.
    `spawn` runs something in the background.
    """

    def __init__(
        self,
        publisher: Publisher,
        admission: AdmissionControl,
        connection: PipelinedConnection,
        *,
        listening: Callable[[str], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._publisher = publisher
        self._admission = admission
        self._connection = connection
        self._listening = listening
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._retracting = dict[str, asyncio.Task[None]]()  # by call id
        self.most_in_flight = publisher.most_in_flight

    @property
    def is_ready(self) -> bool:
        """Implements `Publisher.is_ready`."""
        return self._connection.is_connected and self._publisher.is_ready

    async def ready(self) -> None:
        """Implements `Publisher.ready`."""
        while not self.is_ready:
            try:
                await self._connection.connected()
            except RedisConnectionLost as exc:  # closed for good
                raise NotPublished("the fleet was left") from exc
            await self._publisher.ready()

    async def publish(
        self,
        call: PublishedCall,
        *,
        seconds: float,
        limit: int,
        needs_worker: bool = False,
        again: bool = False,
        follow: object = None,
    ) -> Refusal | None:
        """Implements `Publisher.publish`. A call that is surely not published counts towards no limit."""
        del follow
        seconds = min(seconds, call.deadline_at - fleet_clock.now())
        give_up_at = self._loop.time() + seconds
        await self._retracted(call, seconds)
        ask = functools.partial(self._admission.ask, needs_worker=needs_worker, again=again)
        refusal = await self._ask(ask, call, give_up_at=give_up_at, again=again)
        if refusal is not None:
            return None if refusal.kind == "waits" else refusal
        left = give_up_at - self._loop.time()
        try:
            refusal = await self._publisher.publish(call, seconds=left, limit=limit, again=again)
        except NotPublished:
            if not again:  # else an earlier message may be in the queue
                await self._retract(call)
            raise
        if refusal is None and call.turn is not None:
            self._admission.keep_turn(self._connection, call, call.turn)
        elif refusal is not None and not again:
            await self._retract(call)
        return refusal

    async def revoke(self, call_id: str) -> None:
        """Implements `Publisher.revoke`."""
        await self._publisher.revoke(call_id)

    async def republish(self, delivered: Delivered, *, delay: float, retries: int) -> None:
        """Implements `Publisher.republish`."""
        await self._publisher.republish(delivered, delay=delay, retries=retries)

    async def put(self, message: str, queue_name: str, *, seconds: float) -> object:
        """Implements `Publisher.put`."""
        return await self._publisher.put(message, queue_name, seconds=seconds)

    async def control(self, task: str, *args: str, queue: str = CONTROL, limit: int = 0) -> None:
        """Implements `Publisher.control`."""
        await self._publisher.control(task, *args, queue=queue, limit=limit)

    def close(self) -> None:
        """Implements `Publisher.close`."""
        self._publisher.close()

    async def _ask(
        self,
        ask: Callable[[PipelinedConnection, PublishedCall], Awaitable[Refusal | None]],
        call: PublishedCall,
        *,
        give_up_at: float,
        again: bool,
    ) -> Refusal | None:
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._listening(call.call_id)
                return await ask(self._connection, call)
        except TimeoutError as exc:
            if not again:
                self._retract_soon(call)
            raise BrokerUnavailable("Redis does not answer", passes=True) from exc
        except RedisConnectionLost as exc:  # closed for good
            raise NotPublished("the fleet was left") from exc
        except ResponseError as exc:  # memory is full, a replica, …: nothing was written
            raise unavailable(exc) or NotPublished(str(exc)) from exc
        except asyncio.CancelledError:  # it may have been let in just now
            if not again:
                self._retract_soon(call)
            raise

    async def _retract(self, call: PublishedCall) -> None:
        await asyncio.wait([self._retract_soon(call)], timeout=_RETRACT_SECONDS)

    def _retract_soon(self, call: PublishedCall) -> asyncio.Task[None]:
        task = self._retracting[call.call_id] = self._spawn(self._admission.retract(self._connection, call))
        task.add_done_callback(lambda _: self._retracting.pop(call.call_id, None))
        return task

    async def _retracted(self, call: PublishedCall, seconds: float) -> None:
        """Wait until an earlier attempt is retracted: otherwise that could retract this one."""
        retracting = self._retracting.get(call.call_id)
        if retracting is not None:
            await asyncio.wait([retracting], timeout=seconds)
            if not retracting.done():
                raise BrokerUnavailable("Redis does not answer", passes=True)
