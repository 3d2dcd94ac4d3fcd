"""Compares workers that say that they live with those that answer when they are asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import fleet_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio import in_abandoned_thread
from toolfleet_tasks.app import make_app
from toolfleet_tasks.operations.queue_lengths import ask_broker
from toolfleet_tasks.presence import LiveWorker, read_notes
from toolfleet_tasks.scripts import SLOTS_COUNT_SECONDS


@dataclass(frozen=True, slots=True)
class WorkerAnswers:
    """`noted`: the workers that have noted their slots within 20 s.

    `answering`: the names of those that answer questions.

    `listening`: how many worker processes have a connection on which they listen, by Redis; `None` if that is unknown.
    """

    noted: tuple[LiveWorker, ...]
    answering: frozenset[str]
    listening: int | None

    @property
    def deaf(self) -> tuple[str, ...]:
        """The names of workers that say that they live, and do not answer."""
        return tuple(one.name for one in self.noted if one.name not in self.answering)


async def ask_workers(settings: Settings, *, seconds: float) -> WorkerAnswers:
    """Ask each worker by remote control, and wait for answers for `seconds`. Raises redis-py's errors, `TimeoutError` and `BrokerAway`."""
    url, master = fleet_url(settings.redis_url), settings.sentinel_master
    async with async_client(url, master=master, timeout_seconds=seconds) as redis:
        noted = await _noted(redis, settings)
        listening = await _listening(settings, redis)
        ask = in_abandoned_thread if settings.has_redis_broker else ask_broker
        answers = await ask(lambda: _stats(settings, seconds), seconds=2 * seconds)
        noted = tuple(
            one for one in await _noted(redis, settings) if one in noted
        )  # who has ended meanwhile is not deaf
    answering = {f"{name.partition('@')[2]}:{stats.get('pid')}" for name, stats in answers}
    pids = {name.rpartition(":")[2] for name in answering}
    # A node may be named after something else than its host.
    names = {one.name for one in noted if one.name in answering or one.name.rpartition(":")[2] in pids}
    return WorkerAnswers(noted, frozenset(names), listening)


async def _noted(redis: Redis, settings: Settings) -> tuple[LiveWorker, ...]:
    since, notes = (await redis.time())[0] - SLOTS_COUNT_SECONDS, list[Any]()
    for lane in ("fast", "slow"):
        notes += await redis.zrangebyscore(settings.keys.slots(lane), since, "+inf")
    return tuple(sorted({one.name: one for one in read_notes(notes)}.values(), key=lambda one: one.name))


async def _listening(settings: Settings, redis: Redis) -> int | None:
    if settings.broker != settings.redis_url:
        return None
    return len(await redis.pubsub_channels(settings.keys.holder("*")))


def _stats(settings: Settings, seconds: float) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each worker node's own statistics, by its name: unnamed nodes may share one."""
    app = make_app(settings, stores_results=False)
    try:
        replies = app.control.broadcast("stats", reply=True, timeout=seconds) or []
        return [(name, stats) for reply in replies for name, stats in reply.items() if isinstance(stats, dict)]
    finally:
        app.close()
