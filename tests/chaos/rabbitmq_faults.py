"""What happens to RabbitMQ where calls wait in it: it ends, stands still, or turns its clients out; all of it is made good again."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from chaos.plan import LEASE_SECONDS
from chaos.programs import Program
from chaos.stage import Stage
from support.rabbitmq import RabbitMq


async def _kill(stage: Stage, _: Program, dice: random.Random) -> None:
    """Its queues are durable: what it has confirmed is there again."""
    async with stage.rabbitmq_lock:
        broker = _of(stage)
        await asyncio.to_thread(broker.kill)
        await _start_again(broker, dice)


async def _stop(stage: Stage, _: Program, dice: random.Random) -> None:
    """SIGTERM: it takes leave of its clients."""
    async with stage.rabbitmq_lock:
        broker = _of(stage)
        await asyncio.to_thread(broker.stop)
        await _start_again(broker, dice)


async def _freeze(stage: Stage, _: Program, dice: random.Random) -> None:
    """For longer than a lease, or for a moment."""
    async with stage.rabbitmq_lock:
        with _of(stage).frozen():
            await asyncio.sleep(dice.choice((0.5, LEASE_SECONDS * 1.2, LEASE_SECONDS * 2)))


async def _turn_out(stage: Stage, _: Program, dice: random.Random) -> None:
    """What workers hold goes to others at once, while they run it."""
    async with stage.rabbitmq_lock:
        await asyncio.to_thread(_of(stage).close_connections, "chaos")


async def _start_again(broker: RabbitMq, dice: random.Random) -> None:
    await asyncio.sleep(dice.choice((0, 1, 3)))
    broker.start()
    await asyncio.to_thread(broker.wait_until_ready)


def _of(stage: Stage) -> RabbitMq:
    assert stage.rabbitmq is not None
    return stage.rabbitmq


RABBITMQ_KINDS: dict[str, Callable[[Stage, Program, random.Random], Awaitable[None]]] = {
    "RabbitMQ killed": _kill,
    "RabbitMQ stopped": _stop,
    "RabbitMQ frozen": _freeze,
    "RabbitMQ's connections closed": _turn_out,
}
"""Faults of RabbitMQ's."""

AWAY_KINDS = frozenset({"RabbitMQ killed", "RabbitMQ stopped", "RabbitMQ frozen"})
"""Those after which it answers nobody for a while."""
