"""What happens to the fleet: each fault is done, lasts, and is made good again."""

import asyncio
import contextlib
import json
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
from redis.exceptions import RedisError

from chaos.faults.core_faults import BEAT_KINDS, CORE_KINDS
from chaos.faults.load_faults import LOAD_KINDS
from chaos.faults.moments import moments_of, wait_for
from chaos.faults.rabbitmq_faults import RABBITMQ_KINDS
from chaos.faults.redis_faults import REDIS_CLOCK, REDIS_KINDS
from chaos.plan import LEASE_SECONDS, Plan
from chaos.processes.programs import Program
from chaos.stage import CLOCKED, Stage
from support.clocks import libfaketime
from toolfleet_tasks.transport import scripts

_COPIES = 5
_DRAIN_SECONDS = 20
_LOADED_SECONDS = 120
_TRIES, _REST_SECONDS = 3, 1.0
_OFFSETS = (-200, -30, 30, 200, 400)  # seconds; with the last one a worker takes no calls


@dataclass
class Fault:
    """One that is planned. `was_seen`: whether its moment came; `is_done`: whether it happened, from when to when."""

    kind: str
    moment: str
    was_seen: bool = False
    is_done: bool = False
    victim: str = ""
    began_at: float = 0
    ended_at: float = 0


def planned(plan: Plan, dice: random.Random) -> list[Fault]:
    """Every kind at every moment as evenly as the count allows, in a random order. Without jobs, none that only they meet.

    So many faults as there are kinds are one of each.
    """
    moments, kinds = moments_of(plan), kinds_of(plan)
    pairs = [Fault(kind, moment) for kind in kinds for moment in moments]
    faults: list[Fault] = []
    while len(faults) < plan.faults:
        by_kind = {kind: [pair for pair in dice.sample(pairs, len(pairs)) if pair.kind == kind] for kind in kinds}
        for row in range(len(moments)):
            round_ = [by_kind[kind][row] for kind in kinds]
            faults += [Fault(pair.kind, pair.moment) for pair in dice.sample(round_, len(round_))]
    return faults[: plan.faults]


def kinds_of(plan: Plan) -> list[str]:
    """What can happen to a run's fleet, on this machine."""
    elsewhere = {
        *left_out(),
        *(() if plan.jobs else CORE_KINDS),
        *(QUEUE_KINDS if plan.on_rabbitmq else RABBITMQ_KINDS),
    }
    return [kind for kind in KINDS if kind not in elsewhere]


def left_out() -> list[str]:
    """The kinds that cannot be had on this machine."""
    return [] if libfaketime() else list(CLOCK_KINDS)


async def inflict(fault: Fault, stage: Stage, dice: random.Random) -> None:
    """Wait for its moment, do it, and make it good again. What cannot be done just now is tried again, and then counts as not done."""
    fault.was_seen, seen = await wait_for(fault.moment, stage)
    likely = stage.cores if fault.kind in CORE_KINDS else stage.workers
    victim = seen if seen in likely else dice.choice(likely)
    fault.began_at, fault.victim = time.time(), victim.name
    for _ in range(_TRIES):
        with contextlib.suppress(RedisError, httpx.HTTPError):
            await KINDS[fault.kind](stage, victim, dice)
            fault.is_done = True
            break
        await asyncio.sleep(_REST_SECONDS)
    fault.ended_at = time.time()


async def _kill_worker(stage: Stage, worker: Program, dice: random.Random) -> None:
    async with stage.alone(worker):
        worker.kill()
        await asyncio.sleep(dice.uniform(0, 1))
        worker.start()
        await worker.is_up()


async def _stop_worker(stage: Stage, worker: Program, dice: random.Random) -> None:
    """SIGTERM, as in a rolling update."""
    async with stage.alone(worker):
        worker.send_signal(signal.SIGTERM)
        code = await worker.ended(seconds=_DRAIN_SECONDS)
        if code != 0:
            stage.ended_alone.append(f"{worker.name} ended with {code} on SIGTERM:\n{worker.said()[-2000:]}")
        if code is None:
            worker.kill()
        worker.start()
        await worker.is_up()


async def _freeze_worker(stage: Stage, worker: Program, dice: random.Random) -> None:
    """For longer than its leases: others take its calls, and then it goes on as if nothing had been."""
    async with stage.alone(worker):
        worker.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(LEASE_SECONDS * dice.uniform(1.4, 2.2))
        finally:
            worker.send_signal(signal.SIGCONT)


async def _cut_worker_off(stage: Stage, worker: Program, dice: random.Random) -> None:
    """One more worker, which takes calls of all modules and finds nobody where it looks for one of them."""
    spare = stage.spares["worker-cut-off"]
    async with spare.lock:
        spare.start()
        await spare.is_up()
        await asyncio.sleep(LEASE_SECONDS * dice.uniform(1, 2))
        spare.send_signal(signal.SIGTERM)
        code = await spare.ended(seconds=_DRAIN_SECONDS)
        spare.stop()
    if code != 0:
        stage.ended_alone.append(f"{spare.name} ended with {code} on SIGTERM:\n{spare.said()[-2000:]}")


async def _set_worker_clock(stage: Stage, worker: Program, dice: random.Random) -> None:
    """Of the one worker that has a clock of its own; after a while it is right again."""
    assert stage.worker_clock is not None
    clocked = next(program for program in stage.workers if program.name == CLOCKED)
    async with stage.alone(clocked):
        stage.worker_clock.set_ahead(dice.choice(_OFFSETS))
        try:
            await asyncio.sleep(LEASE_SECONDS * dice.uniform(0.5, 2))
        finally:
            stage.worker_clock.set_ahead(0)


async def _restart_redis(stage: Stage, worker: Program, dice: random.Random) -> None:
    async with stage.redis_lock:
        with stage.redis.restarted(has_loaded=False):
            await asyncio.sleep(dice.choice((0, 0.3, 2)))
        async with asyncio.timeout(
            _LOADED_SECONDS
        ):  # it is away until then: another fault of Redis's would make that longer
            while await asyncio.to_thread(stage.redis.is_loading):  # noqa: ASYNC110 - nothing announces its end
                await asyncio.sleep(0.1)


async def _freeze_redis(stage: Stage, worker: Program, dice: random.Random) -> None:
    async with stage.redis_lock:
        with stage.redis.frozen():
            await asyncio.sleep(dice.choice((0.5, 2, LEASE_SECONDS * 1.5)))


async def _cut_connections(stage: Stage, worker: Program, dice: random.Random) -> None:
    async with stage.redis_lock:
        for kind in ("normal", "pubsub"):
            stage.redis.look.client_kill_filter(_type=kind, skipme=True)


async def _go_deaf(stage: Stage, worker: Program, dice: random.Random) -> None:
    """Half-open connections of a worker, now and then of an agent or beat; found by whoever asks for a sign of life."""
    name = worker.name if dice.random() < 0.7 else dice.choice((*stage.agents, *stage.beats)).name
    stage.proxies[name].go_deaf()


async def _crash_module(stage: Stage, worker: Program, dice: random.Random) -> None:
    """After the next effect and before its reply, by itself."""
    victim = dice.choice(stage.modules)
    async with stage.alone(victim):
        await stage.crash_next(victim.name)
        await victim.ended(seconds=10)
        if victim.process is not None and victim.process.poll() is not None:
            await asyncio.sleep(dice.choice((0, 0.2, 1)))
            victim.start()
            await victim.is_up()


async def _kill_module(stage: Stage, worker: Program, dice: random.Random) -> None:
    victim = dice.choice(stage.modules)
    async with stage.alone(victim):
        victim.kill()
        await asyncio.sleep(dice.choice((0, 0.2, 1)))
        victim.start()
        await victim.is_up()


async def _double_messages(stage: Stage, worker: Program, dice: random.Random) -> None:
    """Copies of messages that workers hold: two run the same call at the same time."""
    async with stage.redis_lock:
        look = stage.redis.look
        held = await _held(stage)
        for tag in dice.sample(held, min(len(held), _COPIES)):
            stored = look.hget("unacked", tag)
            if stored is not None:
                message, *_, queue = json.loads(str(stored))
                look.eval(scripts.PUBLISH.text, 2, queue, stage.settings.keys.notify_key(queue), json.dumps(message))


async def _take_leases(stage: Stage, worker: Program, dice: random.Random) -> None:
    """All leases of messages run out at once, while their workers live."""
    async with stage.redis_lock:
        held = await _held(stage)
        if held:
            stage.redis.look.zadd("unacked_index", dict.fromkeys(held, 0), xx=True)


async def _double_beat(stage: Stage, worker: Program, dice: random.Random) -> None:
    beat = stage.beat("beat-double")
    beat.start()
    try:
        await beat.is_up()
        await asyncio.sleep(dice.uniform(1, 3))
    finally:
        beat.kill()


async def _held(stage: Stage) -> list[str]:
    """The messages in workers' hands, as soon as there are any."""
    for _ in range(200):
        if held := stage.redis.look.hkeys("unacked"):
            return [str(tag) for tag in held]
        await asyncio.sleep(0.01)
    return []


CLOCK_KINDS = {**REDIS_CLOCK, "worker's clock set": _set_worker_clock}
"""Faults that need libfaketime."""

QUEUE_KINDS: dict[str, Callable[[Stage, Program, random.Random], Awaitable[None]]] = {
    "message doubled": _double_messages,
    "leases taken": _take_leases,
}
"""Faults of messages in Redis; RabbitMQ gives to others what it takes from a worker whose connection it closes."""

UNSTORED = frozenset({"Redis restarted", "Redis frozen", "Redis full"})
"""Faults during which Redis takes nothing."""

KINDS: dict[str, Callable[[Stage, Program, random.Random], Awaitable[None]]] = {
    "worker killed": _kill_worker,
    "worker paused beyond its lease": _freeze_worker,
    "worker stopped": _stop_worker,
    "worker cut off from a module": _cut_worker_off,
    "Redis restarted": _restart_redis,
    "Redis frozen": _freeze_redis,
    "connections cut": _cut_connections,
    "half-open": _go_deaf,
    "module crashed": _crash_module,
    "module killed": _kill_module,
    **QUEUE_KINDS,
    "beat doubled": _double_beat,
    **REDIS_KINDS,
    **RABBITMQ_KINDS,
    **CLOCK_KINDS,
    **LOAD_KINDS,
    **BEAT_KINDS,
    **CORE_KINDS,
}
"""The faults, by what the report calls them."""
