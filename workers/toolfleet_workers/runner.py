"""Runs one call in a worker: middleware around an executor, one call in, one attempt out."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import structlog

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_workers.attempts import unsuccessful

log = structlog.get_logger(__name__)

Proceed = Callable[[PublishedCall], Awaitable[Attempt]]
"""What comes next for a call."""


class Middleware(Protocol):
    """One concern around every call: gets the call and what comes next, and returns how it ended."""

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Call `proceed` once at most. What it raises must pass: only the runner makes results of errors."""
        ...


class Executor(Protocol):
    """Takes a call to where its tool is."""

    async def execute(self, call: PublishedCall, *, seconds: float) -> Attempt:
        """One attempt within `seconds`. Raises `TimeoutError` if they are over after the request was sent."""
        ...

    async def aclose(self) -> None:
        """Give back what calls share."""
        ...


class CallRunner:
    """What a worker's app gets as its runner. The first of `middleware` is the outermost."""

    def __init__(self, executor: Executor, middleware: Sequence[Middleware]) -> None:
        self._executor = executor
        self._middleware = tuple(middleware)

    async def run(self, call: PublishedCall, *, seconds: float) -> Attempt:
        """Run one attempt of `call` within `seconds`.

        Lets `TimeoutError` (the executor's time is over) and `CancelledError` pass; anything else that is raised
        is a defect of ours: it is logged, and the call ends as `internal` with an unknown effect.
        """
        give_up_at = time.monotonic() + seconds

        async def execute(call: PublishedCall) -> Attempt:
            return await self._executor.execute(call, seconds=give_up_at - time.monotonic())

        try:
            return await compose(self._middleware, execute)(call)
        except (TimeoutError, asyncio.CancelledError):  # first: the pool's soft limit is both this and an Exception
            raise
        except Exception as exc:
            log.exception("tool_call_crashed", call_id=call.call_id, tool=call.tool_name)
            text = f"Tool execution error: internal error ({type(exc).__name__})"
            return unsuccessful(call, Outcome.UNKNOWN, "internal", text)

    async def aclose(self) -> None:
        """Close the executor; no call may be running."""
        await self._executor.aclose()


def compose(middleware: Sequence[Middleware], innermost: Proceed) -> Proceed:
    """Put `middleware` around `innermost`, the first one outermost."""
    proceed = innermost
    for layer in reversed(middleware):
        proceed = functools.partial(layer, proceed=proceed)
    return proceed
