"""Checks whether workers answer: to remote control, and to canaries that are sent through their queues.

A canary that no worker takes in time is removed from its queue, if the broker is a Redis; in any case no worker starts
it after its deadline.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from redis.asyncio import Redis

from toolfleet_registry.redis.keys import canary_key
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_tasks.aio import in_abandoned_thread
from toolfleet_tasks.app import make_app
from toolfleet_tasks.clock import Timekeeper
from toolfleet_tasks.control.fleet_tasks import CANARY, CanaryAnswer, read_answers
from toolfleet_tasks.messages.envelope import control_message, sender, time_after
from toolfleet_tasks.operations.queue_lengths import ask_broker
from toolfleet_tasks.presence import LiveWorker, noted_workers
from toolfleet_tasks.transport.scripts import PUBLISH


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
    async with settings.redis_client(timeout_seconds=seconds) as redis:
        noted = await noted_workers(redis, settings, "fast", "slow")
        listening = await _listening(settings, redis)
        ask = in_abandoned_thread if settings.has_redis_broker else ask_broker
        answers = await ask(lambda: _stats(settings, seconds), seconds=2 * seconds)
        noted = tuple(
            one for one in await noted_workers(redis, settings, "fast", "slow") if one in noted
        )  # who has ended meanwhile is not deaf
    answering = {f"{name.partition('@')[2]}:{stats.get('pid')}" for name, stats in answers}
    pids = {name.rpartition(":")[2] for name in answering}
    # A node may be named after something else than its host.
    names = {one.name for one in noted if one.name in answering or one.name.rpartition(":")[2] in pids}
    return WorkerAnswers(noted, frozenset(names), listening)


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


_WAVE = 50  # canaries at once: each has a worker connect to Redis, and to a module
_PAUSE_SECONDS = 0.02
_UNKNOWN = b"NotRegistered"  # what Celery stores of a task that a worker does not know

Fate = Literal["answered", "waiting", "silent", "unknown"]


@dataclass(frozen=True, slots=True)
class CanaryFlight:
    """The fate of one canary.

    Times are seconds; `queued` is until a worker took it, `total` until its answer was there.

    `waiting`: no worker has taken it. `silent`: a worker has, and has not answered. `unknown`: a worker of a version
    without canaries has.
    """

    queue: str
    module: str
    fate: Fate
    queued: float | None = None
    total: float | None = None
    answer: CanaryAnswer | None = None


@dataclass(frozen=True, slots=True)
class _Canary:
    queue: str
    module: str
    id: str
    text: str
    sent_at: float


async def fly(settings: Settings, queues: Mapping[str, str], *, seconds: float) -> list[CanaryFlight]:
    """Send a canary through each of these queues, with the module that its worker is to ask, or ''. Takes about `seconds` a wave of 50.

    Raises redis-py's errors, and `BrokerAway` where RabbitMQ does not answer.
    """
    flights, names = list[CanaryFlight](), sorted(queues)
    async with settings.redis_client(timeout_seconds=seconds) as redis:
        await Timekeeper(settings).begin(redis)
        for start in range(0, len(names), _WAVE):
            flights += await _wave(
                redis, settings, {name: queues[name] for name in names[start : start + _WAVE]}, seconds
            )
    return flights


async def _wave(redis: Redis, settings: Settings, queues: Mapping[str, str], seconds: float) -> list[CanaryFlight]:
    sent = await _send(settings, queues, seconds)
    answers = dict[str, tuple[float, CanaryAnswer]]()
    give_up_at = asyncio.get_running_loop().time() + seconds
    while len(answers) < len(sent) and asyncio.get_running_loop().time() < give_up_at:
        missing = [one for one in sent if one.id not in answers]
        for one, answer in (await _answers(redis, settings, missing)).items():
            answers[one] = (fleet_clock.now(), answer)
        if len(answers) < len(sent):
            await asyncio.sleep(_PAUSE_SECONDS)
    fates = await _fates(redis, settings, [one for one in sent if one.id not in answers])
    return [_flight(one, answers.get(one.id), fates.get(one.id, "silent")) for one in sent]


async def _send(settings: Settings, queues: Mapping[str, str], seconds: float) -> list[_Canary]:
    ids = {queue: randomness.uuid4().hex for queue in queues}
    expires = time_after(seconds).isoformat()
    origin = sender()
    canaries = [
        _Canary(
            queue,
            module,
            ids[queue],
            control_message(CANARY, [ids[queue], module], queue, origin=origin, task_id=ids[queue], expires=expires),
            fleet_clock.now(),
        )
        for queue, module in queues.items()
    ]
    broker = str(settings.broker)
    if not settings.has_redis_broker:
        await ask_broker(lambda: _send_by_kombu(settings, canaries, seconds), seconds=seconds)
        return canaries
    async with async_client(broker, master=settings.sentinel_master, timeout_seconds=seconds) as redis:
        for number, one in enumerate(canaries):
            canaries[number] = replace(one, sent_at=fleet_clock.now())
            names = {"queue": settings.keys.queue(one.queue), "notify_key": settings.keys.notify_key(one.queue)}
            await redis.eval(PUBLISH.text, *PUBLISH.parameters(**names, message=one.text))
    return canaries


def _send_by_kombu(settings: Settings, canaries: Iterable[_Canary], seconds: float) -> None:
    app = make_app(settings, stores_results=False)
    try:
        with app.connection_for_write() as connection:
            for one in canaries:
                options: dict[str, Any] = {"queue": one.queue, "task_id": one.id, "expires": seconds}
                app.send_task(CANARY, [one.id, one.module], connection=connection, ignore_result=True, **options)
    finally:
        app.close()


async def _answers(redis: Redis, settings: Settings, asked: Sequence[_Canary]) -> dict[str, CanaryAnswer]:
    pipe = redis.pipeline(transaction=False)
    for one in asked:
        pipe.lrange(canary_key(settings.keys, one.id), 0, 0)
    found = zip(asked, await pipe.execute(), strict=True)
    return {one.id: answers[0] for one, texts in found if (answers := read_answers(texts))}


async def _fates(redis: Redis, settings: Settings, missing: Sequence[_Canary]) -> dict[str, Fate]:
    """Return the fates of unanswered canaries; those that still wait are removed from their queues."""
    if not missing:
        return {}
    pipe = redis.pipeline(transaction=False)
    for one in missing:
        pipe.get(settings.keys.result(one.id))
    fates: dict[str, Fate] = {}
    for one, stored in zip(missing, await pipe.execute(), strict=True):
        text = stored.encode() if isinstance(stored, str) else stored or b""
        fates[one.id] = "unknown" if _UNKNOWN in text else "silent"
    if settings.has_redis_broker:
        async with async_client(str(settings.broker), master=settings.sentinel_master) as there:
            for one in missing:
                if await there.lrem(settings.keys.queue(one.queue), 0, one.text):
                    fates[one.id] = "waiting"
    return fates


def _flight(one: _Canary, answered: tuple[float, CanaryAnswer] | None, fate: Fate) -> CanaryFlight:
    if answered is None:
        return CanaryFlight(one.queue, one.module, fate)
    seen_at, answer = answered
    queued = max(0.0, answer.taken_at - one.sent_at)
    return CanaryFlight(one.queue, one.module, "answered", queued, max(0.0, seen_at - one.sent_at), answer)
