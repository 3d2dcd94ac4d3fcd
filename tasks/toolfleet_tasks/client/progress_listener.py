"""Tells a caller's own function how far its call is, in order, while the result is waited for."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeAlias, TypeVar

from toolfleet_registry.contracts.call_context import Progress
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

OnProgress: TypeAlias = Callable[[Progress], object]
"""Gets each step; what it returns is awaited, if it can be."""

Step = TypeVar("Step")

_LAST_SECONDS = 1.0  # for the function to take the last steps, once the result is there
_END_SECONDS = 0.5  # for one that is at work then to let itself be cancelled


@contextlib.asynccontextmanager
async def telling(steps: AsyncGenerator[Step], on_progress: Callable[[Step], object]) -> AsyncGenerator[None]:
    """Call `on_progress` with each step, one after the other, while inside, and until the steps end or a second later.

    Its exceptions are logged once and lose neither the next step nor the result; for a function that hangs, the result
    waits no longer than that second and half of one.
    """
    task = asyncio.create_task(_tell(steps, on_progress), name="toolfleet-on-progress")
    try:
        yield
        await asyncio.wait({task}, timeout=_LAST_SECONDS)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_END_SECONDS)


def call_listener(step: Step, on_progress: Callable[[Step], object]) -> Any:
    """Return the result of `on_progress` for a step; `None`, with a line in the log, if it raises."""
    try:
        return on_progress(step)
    except Exception:
        log.warning("on_progress_failed", exc_info=True)
        return None


async def _tell(steps: AsyncGenerator[Step], on_progress: Callable[[Step], object]) -> None:
    async with contextlib.aclosing(steps):
        async for step in steps:
            answer = call_listener(step, on_progress)
            if inspect.isawaitable(answer):
                try:
                    await answer
                except Exception:
                    log.warning("on_progress_failed", exc_info=True)
