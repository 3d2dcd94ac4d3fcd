"""Functions of our own that say how far they are: what `TOOLFLEET_LOCAL_TOOLS` names in tests of that."""

import asyncio
import itertools
from pathlib import Path

from toolfleet import report_progress
from toolfleet.tags import local_tool


@local_tool(effect="read")
async def count(until: str) -> str:
    """Count, until that file is there."""
    for number in itertools.count():
        report_progress(None, f"at {number}")
        if Path(until).exists():
            return "counted"
        await asyncio.sleep(0.05)
    return "never"


@local_tool(effect="read")
async def compute(until: str) -> str:
    """The same in a thread, which says it far too often, and once more after the end."""

    def work() -> str:
        number = 0
        while not Path(until).exists():
            number += 1
            report_progress(0.5, f"at {number}")
        return "computed"

    return await asyncio.to_thread(work)


tools = [count, compute]
