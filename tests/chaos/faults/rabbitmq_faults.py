"""What happens to RabbitMQ where calls wait in it: it ends, stands still, turns its clients out, or does not hear them; all of it is made good again."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from chaos.plan import LEASE_SECONDS
from chaos.processes.programs import Program
from chaos.stage import Stage
from support.servers.rabbitmq import RabbitMq
from toolfleet_tasks.app import BROKER_HEARTBEAT_SECONDS


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


async def _strand(stage: Stage, worker: Program, dice: random.Random) -> None:
    """Half-open connections: what is new works, and whoever has the old ones finds out by heartbeats, or has no answer."""
    stage.rabbitmq_proxies[_whose(stage, worker, dice)].go_deaf()


async def _go_unheard(stage: Stage, worker: Program, dice: random.Random) -> None:
    """Nothing passes in one direction, or in both, not over new connections either; then these stand again, or are reset."""
    proxy = stage.rabbitmq_proxies[_whose(stage, worker, dice)]
    there, back = dice.choice(((True, True), (True, False), (False, True)))
    proxy.hold(there=there, back=back)
    try:
        await asyncio.sleep(dice.choice((1, LEASE_SECONDS * 1.5, BROKER_HEARTBEAT_SECONDS * 2.5)))
    finally:
        if dice.random() < 0.5:
            proxy.reset()
        proxy.release()


def _whose(stage: Stage, worker: Program, dice: random.Random) -> str:
    return worker.name if dice.random() < 0.7 else dice.choice((*stage.agents, *stage.beats)).name


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
    "RabbitMQ half-open": _strand,
    "RabbitMQ unheard": _go_unheard,
}
"""Faults of RabbitMQ's."""

_FOUND_SECONDS = 3 * BROKER_HEARTBEAT_SECONDS  # it, or the worker, has missed two heartbeats then

AWAY_SECONDS = {
    "RabbitMQ killed": 0,
    "RabbitMQ stopped": 0,
    "RabbitMQ frozen": 0,
    "RabbitMQ half-open": _FOUND_SECONDS,
    "RabbitMQ unheard": 0,
}
"""Those in which it does not answer somebody for a while, and for how long after them: whose messages it holds, nobody gets."""
