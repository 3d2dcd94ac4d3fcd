"""Plays a share of the cases in a process of its own: `python -m chaos.approvals.player_process NUMBER CASES SECONDS SEED FOLDER`.

Settings from the environment. A process of its own, so that whoever does the faults has time for them.
"""

import asyncio
import random
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from chaos.approvals.cases import Case, make_cases, write_end
from chaos.approvals.players import Players
from toolfleet import ToolFleet
from toolfleet_registry.settings import load_settings

READY = "player ready"
PLAYERS = 2
"""So many of these."""

_FLEETS = 2
_AT_ONCE = 150  # of a process: more of them only wait for its own processor


def ends_file(folder: Path, number: int) -> Path:
    """How its cases have ended."""
    return folder / f"ends-{number}.jsonl"


async def play(number: int, cases: list[Case], seconds: float, seed: int, folder: Path) -> None:
    """Play each case, begun spread over so many seconds; later, where too many go on."""
    settings, slots = load_settings(), asyncio.Semaphore(_AT_ONCE)
    async with AsyncExitStack() as stack:
        fleets = [await stack.enter_async_context(ToolFleet(settings=settings)) for _ in range(_FLEETS)]
        players = Players(fleets, random.Random(f"{seed} {number}"))
        ends = stack.enter_context(ends_file(folder, number).open("a"))

        async def one(case: Case) -> None:
            try:
                await players.play(case)
                write_end(case, ends)
            finally:
                slots.release()

        print(READY, flush=True)  # noqa: T201 - what starts it waits for that
        began_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for place, case in enumerate(cases):
                await asyncio.sleep(max(began_at + place / len(cases) * seconds - time.monotonic(), 0))
                await slots.acquire()
                group.create_task(one(case))


def main() -> None:
    number, count, seconds, seed, folder = sys.argv[1:]
    mine = make_cases(int(count), random.Random(int(seed)))[int(number) :: PLAYERS]
    asyncio.run(play(int(number), mine, float(seconds), int(seed), Path(folder)))


if __name__ == "__main__":
    main()
