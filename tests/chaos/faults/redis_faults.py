"""What happens to Redis beside its end: it is full, it is set to evict, its clock is set; all of it is made good again."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from chaos.plan import LEASE_SECONDS
from chaos.processes.programs import Program
from chaos.stage import Stage
from toolfleet_registry.system.fleet_clock import YOUNG_SECONDS

_REFUSAL_SECONDS = 30  # a process that starts on a busy machine
_REFUSAL = "maxmemory-policy"
_GROWN_UP_SECONDS = YOUNG_SECONDS + 3  # it starts on a busy machine, too
_NOTICED_SECONDS = 2  # each worker looks once a second
_STEPS = (-600, -90, 90, 600)  # seconds


async def _fill_redis(stage: Stage, _: Program, dice: random.Random) -> None:
    """It refuses whatever needs memory."""
    async with stage.redis_lock:
        with stage.redis.full():
            await asyncio.sleep(dice.choice((0.5, 2, LEASE_SECONDS * 1.5)))


async def _have_redis_evict(stage: Stage, _: Program, dice: random.Random) -> None:
    """A worker that is started at it must end, and say why. The others, which run, go on; none of them is started meanwhile."""
    refused = stage.spares["worker-refused"]
    async with stage.without_starts():
        with stage.redis.evicting():
            refused.start()
            code = await refused.ended(seconds=_REFUSAL_SECONDS)
            said = refused.said()
            refused.stop()
    if not code or refused.ready in said or _REFUSAL not in said:
        stage.not_refused.append(f"a worker at a Redis that evicts ended with {code}:\n{said[-2000:]}")
    stage.refusals += bool(code)


async def _set_redis_clock(stage: Stage, _: Program, dice: random.Random) -> None:
    """Forward or back, and after a while to what it was before. Meanwhile workers may be killed and started, and Redis as well."""
    await _step(stage, dice.choice(_STEPS))
    try:
        await asyncio.sleep(LEASE_SECONDS * dice.uniform(0.2, 1.5))
    finally:
        await _step(stage, 0)


async def _step(stage: Stage, ahead: float) -> None:
    """While one worker lives that has known the time for a while; others may be killed and started at that very moment."""
    assert stage.redis_clock is not None
    free = [worker for worker in stage.workers if not worker.lock.locked()] or stage.workers
    witness = min(free, key=lambda worker: worker.started_at)
    async with stage.alone(witness), stage.redis_lock:
        await asyncio.sleep(max(witness.started_at + _GROWN_UP_SECONDS - time.monotonic(), 0))
        stage.redis_clock.set_ahead(ahead)
        await asyncio.sleep(_NOTICED_SECONDS)


REDIS_KINDS: dict[str, Callable[[Stage, Program, random.Random], Awaitable[None]]] = {
    "Redis full": _fill_redis,
    "Redis evicting": _have_redis_evict,
}
"""Faults of Redis's."""

REDIS_CLOCK = {"Redis's clock set": _set_redis_clock}
"""One that needs libfaketime."""
