"""Runs one call in a worker: middleware around an executor, one call in, one attempt out."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import structlog

from toolfleet_registry.contracts import PublishedCall, Terms, ToolDefinition
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_registry.terms import terms_of
from toolfleet_workers.attempts import told, unsuccessful

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


class Definitions(Protocol):
    """Knows the modules' tools."""

    @property
    def is_old(self) -> bool:
        """Whether that should be learnt anew before anything is decided on it."""
        ...

    def definition(self, tool_name: str) -> ToolDefinition | None:
        """The tool as its module defines it; `None` if nothing is known of it."""
        ...

    async def refresh(self, *, reads_all: bool = True) -> None:
        """Learn what has changed, or all of it anew; returns soon, also if that does not work."""
        ...


class CallRunner:
    """What a worker's app gets as its runner. The first of `middleware` is the outermost; `closing` ends with us."""

    def __init__(
        self,
        executor: Executor,
        middleware: Sequence[Middleware],
        *,
        definitions: Definitions | None = None,
        closing: Sequence[Closable] = (),
    ) -> None:
        self._executor = executor
        self._definitions = definitions
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
        except Exception as exc:  # noqa: BLE001 - no defect of ours may cost the call its result
            # Where, but not the error's text: it may quote arguments, or what the module said.
            stack = "".join(traceback.format_tb(exc.__traceback__))
            kind = type(exc).__name__
            log.error("tool_call_crashed", call_id=call.call_id, tool=call.tool_name, kind=kind, stack=stack)  # noqa: TRY400
            text = f"Tool execution error: internal error ({type(exc).__name__})"
            return unsuccessful(call, Outcome.UNKNOWN, "internal", text)

    async def terms(self, call: PublishedCall) -> Terms | None:
        """Under which terms the tool may be called; `None` without any, and for one that nothing is known of."""
        if self._definitions is None:
            return None
        tool = self._definitions.definition(call.tool_name)
        if tool is None or self._definitions.is_old:
            await self._definitions.refresh(reads_all=tool is None)
            tool = self._definitions.definition(call.tool_name)
        return None if tool is None else terms_of(tool)

    async def reconcile(self, call: PublishedCall, *, seconds: float) -> Attempt | None:
        """What the module says of a call whose end nobody saw; `None` if it does not, within `seconds`.

        No middleware is around it, for nothing is executed. Lets `CancelledError` pass; a defect of ours is logged.
        """
        try:
            return await self._executor.reconcile(call, seconds=seconds)
        except asyncio.CancelledError:  # first: the pool's soft limit is both this and an Exception
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, the call's end is as unknown as before
            log.warning("reconcile_failed", call_id=call.call_id, tool=call.tool_name, error=told(exc))
            return None

    async def aclose(self) -> None:
        """Close the executor, and what else there is; no call may be running."""
        for each in self._closing:
            await each.aclose()


def compose(middleware: Sequence[Middleware], innermost: Proceed) -> Proceed:
    """Put `middleware` around `innermost`, the first one outermost."""
    proceed = innermost
    for layer in reversed(middleware):
        proceed = _Layer(layer, proceed)
    return proceed


class _Layer:
    """A middleware and what comes next. Each call in flight has its own; a partial takes four times as much memory."""

    __slots__ = ("_middleware", "_proceed")

    def __init__(self, middleware: Middleware, proceed: Proceed) -> None:
        self._middleware, self._proceed = middleware, proceed

    def __call__(self, call: PublishedCall) -> Awaitable[Attempt]:
        return self._middleware(call, self._proceed)
