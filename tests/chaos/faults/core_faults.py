"""What happens to the agents' core, and to beat: where jobs are made, without them nobody would wake anybody."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable

from chaos.plan import LEASE_SECONDS
from chaos.processes.programs import Program
from chaos.stage import Stage

_STOP_SECONDS = 20
_CRASH_SECONDS = 10
_STOPPED = (0, -signal.SIGTERM)  # uvicorn ends by the signal that it was asked with


async def _kill_core(stage: Stage, core: Program, dice: random.Random) -> None:
    async with stage.alone(core):
        core.kill()
        await asyncio.sleep(dice.choice((0, 0.5, 2)))
        core.start()
        await core.is_up()


async def _kill_all_cores(stage: Stage, core: Program, dice: random.Random) -> None:
    """Nobody listens any more, for longer than a second try waits."""
    first, second = stage.cores
    async with stage.alone(first), stage.alone(second):
        for one in (first, second):
            one.kill()
        await asyncio.sleep(dice.choice((0.5, 2, 4)))
        for one in (first, second):
            one.start()
        for one in (first, second):
            await one.is_up()


async def _crash_core(stage: Stage, core: Program, dice: random.Random) -> None:
    """Between its next act and the answer, by itself."""
    async with stage.alone(core):
        core.send_signal(signal.SIGUSR1)
        await core.ended(seconds=_CRASH_SECONDS)
        if core.process is not None and core.process.poll() is not None:
            await asyncio.sleep(dice.choice((0, 0.2, 1)))
            core.start()
            await core.is_up()


async def _freeze_core(stage: Stage, core: Program, dice: random.Random) -> None:
    """For longer than its claims last: the other takes over, and then it goes on as if nothing had been."""
    async with stage.alone(core):
        core.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(LEASE_SECONDS * dice.uniform(1.4, 2.2))
        finally:
            core.send_signal(signal.SIGCONT)


async def _stop_core(stage: Stage, core: Program, dice: random.Random) -> None:
    """SIGTERM, as in a rolling update."""
    async with stage.alone(core):
        core.send_signal(signal.SIGTERM)
        code = await core.ended(seconds=_STOP_SECONDS)
        if code not in _STOPPED:
            stage.ended_alone.append(f"{core.name} ended with {code} on SIGTERM:\n{core.said()[-2000:]}")
        if code is None:
            core.kill()
        core.start()
        await core.is_up()


async def _cut_core_off(stage: Stage, core: Program, dice: random.Random) -> None:
    stage.proxies[core.name].go_deaf()


async def _kill_beat(stage: Stage, _: Program, dice: random.Random) -> None:
    beat = stage.beats[0]
    async with stage.alone(beat):
        beat.kill()
        await asyncio.sleep(dice.uniform(0, 3))
        beat.start()
        await beat.is_up()


async def _freeze_beat(stage: Stage, _: Program, dice: random.Random) -> None:
    beat = stage.beats[0]
    async with stage.alone(beat):
        beat.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(dice.uniform(1, 6))
        finally:
            beat.send_signal(signal.SIGCONT)


CORE_KINDS: dict[str, Callable[[Stage, Program, random.Random], Awaitable[None]]] = {
    "core killed": _kill_core,
    "all cores killed": _kill_all_cores,
    "core crashed": _crash_core,
    "core frozen": _freeze_core,
    "core stopped": _stop_core,
    "core cut off": _cut_core_off,
}
"""Faults of the core's, each with the process that it strikes."""

BEAT_KINDS: dict[str, Callable[[Stage, Program, random.Random], Awaitable[None]]] = {
    "beat killed": _kill_beat,
    "beat frozen": _freeze_beat,
}
"""Faults of beat's."""
