"""Asks RabbitMQ how many messages wait in its queues, for a bounded time, over a connection that is kept between readings."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from kombu.exceptions import OperationalError

from toolfleet_registry.errors import BrokerAway, BrokerUnavailable, FleetUnavailable
from toolfleet_registry.redis.servers import answering, async_client, reason_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock
from toolfleet_tasks.aio import in_abandoned_thread
from toolfleet_tasks.app import make_app
from toolfleet_tasks.broker import KombuConnections, waiting_in
from toolfleet_tasks.queues import CONTROL

T = TypeVar("T")

_KNOWN_SECONDS, _PROBE_SECONDS = 1.0, 1.5


async def ask_broker(ask: Callable[[], T], *, seconds: float) -> T:
    """Return the result of `ask`. Raises `BrokerAway` if the broker does not answer, after `seconds` at the latest."""
    try:
        return await in_abandoned_thread(ask, seconds=seconds)
    except TimeoutError as exc:
        raise BrokerAway(f"The broker does not answer within {seconds:g} s.") from exc
    except (BrokerUnavailable, OperationalError) as exc:
        raise BrokerAway(f"The broker does not answer: {reason_of(exc, 'no answer')}.") from exc


class QueueLengths:
    """The lengths of queues at the settings' broker, which is no Redis. Close it at the end."""

    def __init__(self, settings: Settings) -> None:
        self._connections = KombuConnections(make_app(settings, stores_results=False))

    async def read(self, queues: Sequence[str], *, seconds: float) -> list[int]:
        """Return how many messages wait in each of them, without those that workers hold.

        Raises `BrokerAway` after `seconds`.
        """
        return await ask_broker(lambda: self._ask(queues), seconds=seconds)

    def close(self) -> None:
        """Let go of the connection; what a thread still asks is not waited for."""
        self._connections.close()

    def _ask(self, queues: Sequence[str]) -> list[int]:
        with self._connections.one() as connection:
            try:
                return waiting_in(connection, queues)
            except Exception as exc:  # kombu and its transports raise anything
                raise BrokerUnavailable(str(exc) or repr(exc), passes=True) from exc


class BrokerProbe:
    """Asks whether the broker answers, where it is not the Redis of the results; an answer is good for a second."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._lengths = settings, None if settings.has_redis_broker else QueueLengths(settings)
        self._lock, self._asked_at, self._answered = asyncio.Lock(), float("-inf"), True

    async def answers(self) -> bool:
        """Return whether it does, within a second and a half."""
        if self._settings.broker == self._settings.redis_url:
            return True
        async with self._lock:
            if machine_clock.monotonic() - self._asked_at > _KNOWN_SECONDS:
                self._answered = await self._ask()
                self._asked_at = machine_clock.monotonic()
            return self._answered

    def close(self) -> None:
        """Let go of the connection."""
        if self._lengths is not None:
            self._lengths.close()

    async def _ask(self) -> bool:
        with contextlib.suppress(FleetUnavailable):
            if self._lengths is not None:
                await self._lengths.read([CONTROL], seconds=_PROBE_SECONDS)
                return True
            client = async_client(str(self._settings.broker), master=self._settings.sentinel_master)
            async with client as redis, answering(redis, seconds=_PROBE_SECONDS):
                return bool(await redis.ping())
        return False
