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

    async def reconcile(self, call: PublishedCall, *, seconds: float) -> Attempt | None:
        """What a call that was begun before came to, if that can be found out within `seconds`."""
        ...

    async def aclose(self) -> None:
        """Give back what calls share."""
        ...


class Closable(Protocol):
    """Something that holds connections."""

    async def aclose(self) -> None:
        """Give them back."""
        ...


class CallRunner:
    """What a worker's app gets as its runner. The first of `middleware` is the outermost; `closing` ends with us."""

    def __init__(
        self, executor: Executor, middleware: Sequence[Middleware], *, closing: Sequence[Closable] = ()
    ) -> None:
        self._executor = executor
        self._middleware = tuple(middleware)
        self._closing = (executor, *closing)

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

    async def reconcile(self, call: PublishedCall, *, seconds: float) -> Attempt | None:
        """What the module says of a call whose end nobody saw; `None` if it does not, within `seconds`.

        No middleware is around it, for nothing is executed. Lets `CancelledError` pass; a defect of ours is logged.
        """
        try:
            return await self._executor.reconcile(call, seconds=seconds)
        except asyncio.CancelledError:  # first: the pool's soft limit is both this and an Exception
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, the call's end is as unknown as before
            log.warning(
                "reconcile_failed", call_id=call.call_id, tool=call.tool_name, error=f"{type(exc).__name__}: {exc}"
            )
            return None

    async def aclose(self) -> None:
        """Close the executor, and what else there is; no call may be running."""
        for each in self._closing:
            await each.aclose()


def compose(middleware: Sequence[Middleware], innermost: Proceed) -> Proceed:
    """Put `middleware` around `innermost`, the first one outermost."""
    proceed = innermost
    for layer in reversed(middleware):
        proceed = functools.partial(layer, proceed=proceed)
    return proceed
