"""Runs the guide's program in the environment of Claude's SDK: `run.py PROGRAM REDIS_URL QUESTION` prints what it returns."""

import asyncio
import sys
from pathlib import Path

from support.frameworks.written_program import import_program
from toolfleet import ToolFleet


async def main(text: str, url: str, question: str) -> None:
    program = import_program(text, Path.cwd())
    async with ToolFleet(url) as fleet:
        print(await program.ask(fleet, question))  # noqa: T201 - for the test


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
