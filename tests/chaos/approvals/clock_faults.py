"""Sets the wall clocks of one worker, of beat and of one process of agents and people, each of which is right again after a while."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from chaos.gateways.scene import Scene
from chaos.plan import LEASE_SECONDS
from support.clocks import libfaketime

CLOCKED = ("worker-1", "beat", "player-1")
"""The programs that have clocks of their own, where libfaketime is installed."""

_OFFSETS = (-200, -30, 30, 200, 400)  # seconds, all shorter than the ten minutes that people have


def clock_faults() -> dict[str, Callable[[Scene, random.Random], Awaitable[None]]]:
    """By what the report calls them; none on a machine without libfaketime."""
    return {f"clock of {name} set": _setter(name) for name in CLOCKED} if libfaketime() else {}


def _setter(name: str) -> Callable[[Scene, random.Random], Awaitable[None]]:
    async def set_clock(here: Scene, dice: random.Random) -> None:
        here.clocks[name].set_ahead(dice.choice(_OFFSETS))
        try:
            await asyncio.sleep(LEASE_SECONDS * dice.uniform(0.5, 2))
        finally:
            here.clocks[name].set_ahead(0)

    return set_clock
