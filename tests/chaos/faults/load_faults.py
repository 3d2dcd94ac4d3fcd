"""What comes in that is too much: bursts of calls, and tools whose schemas take long to check."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable

from chaos.plan import AGENTS
from chaos.processes.programs import Program
from chaos.stage import Stage

_LASTS_SECONDS = 1.0  # as a fault among others: the calls have their own time


async def _burst(stage: Stage, _: Program, dice: random.Random) -> None:
    """An agent makes hundreds of calls in one tick."""
    await _tell_an_agent(stage, signal.SIGUSR1, dice)


async def _be_hostile(stage: Stage, _: Program, dice: random.Random) -> None:
    """Arguments, and a module's answer, with which their schemas are slow."""
    await _tell_an_agent(stage, signal.SIGHUP, dice)


async def _tell_an_agent(stage: Stage, number: signal.Signals, dice: random.Random) -> None:
    dice.choice(stage.agents[:AGENTS]).send_signal(number)
    await asyncio.sleep(_LASTS_SECONDS)


LOAD_KINDS: dict[str, Callable[[Stage, Program, random.Random], Awaitable[None]]] = {
    "burst of calls": _burst,
    "hostile schemas": _be_hostile,
}
"""Faults by agents and modules that the fleet has to bear."""
