"""Draws a call's progress as a bar on stderr, and nothing where that is no terminal."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from toolfleet import CallHandle
from toolfleet_cli.console.output import err, plain

_PATIENCE_SECONDS = 1.0  # what is faster needs no sign of life
_LONGEST = 60  # characters of a message next to the bar


@asynccontextmanager
async def progress_bar(handle: CallHandle) -> AsyncGenerator[None]:
    """Show the call's progress meanwhile, once that takes longer than a second."""
    shown = asyncio.create_task(_show(handle))
    try:
        yield
    finally:
        shown.cancel()
        await asyncio.gather(shown, return_exceptions=True)  # a fault of the bar's is none of the call's


async def _show(handle: CallHandle) -> None:
    await asyncio.sleep(_PATIENCE_SECONDS)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(f"{handle.tool_name} is running", total=None)
        async for step in handle.progress():
            total = None if step.fraction is None else 1.0
            words = _line(step.message) or f"{handle.tool_name} is running"
            bar.update(task, total=total, completed=step.fraction or 0.0, description=words)


def _line(text: str) -> str:
    line = " ".join(plain(text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
