"""A function that runs in a worker and writes down that it has begun; nobody has said what a repeat would do."""

import asyncio
import os
from pathlib import Path


async def work() -> None:
    """Works for ever."""
    _note()
    await asyncio.Event().wait()


def _note() -> None:
    with Path(os.environ["OWL_JOURNAL"]).open("a") as journal:
        journal.write("began\n")


tools = [work]
