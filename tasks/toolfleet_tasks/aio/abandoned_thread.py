"""Runs blocking code in a thread that is abandoned after its time: kombu and Celery have no deadline for an answer."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_abandoned_thread(ask: Callable[[], T], *, seconds: float) -> T:
    """Run `ask` in a thread and return its result.

    Raises `TimeoutError` after so many seconds; the thread then goes on by itself.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)  # type: ignore[arg-type] # `ask` has returned it
        else:
            answer.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = ask()
        except Exception as exc:  # noqa: BLE001 - it is raised where it is awaited
            error = exc
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True).start()
    async with asyncio.timeout(seconds):
        return await answer
