"""Follows a call that any process may go on with, in a process that may leave it at any moment."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.call_context import LogLevel, LogMessage, Progress
from toolfleet_registry.contracts.inputs import PendingInput
from toolfleet_tasks.aio.closing import Closing
from toolfleet_tasks.calls.begun_calls import Started
from toolfleet_tasks.calls.idempotency import Joined, handle_of
from toolfleet_tasks.calls.pending_call import PendingCall
from toolfleet_tasks.calls.status import CallStatus


class BegunHandle:
    """A handle on one call: its `id`, and its result. `refusal`: its result, if it was in no queue.

    `is_guest`: another client has started it, and this owner may not cancel it.
    """

    def __init__(self, started: Started, *, is_guest: bool = False) -> None:
        self._handle = handle_of(started)
        self._started = started
        self.id = self._handle.id
        self.tool_name = self._handle.tool_name
        self.refusal = started if isinstance(started, ToolResult) else None
        self.is_guest = is_guest

    @property
    def published(self) -> PublishedCall | None:
        """The call as it was published; `None` for one that was not, or by another client."""
        return self._started.published_call if isinstance(self._started, PendingCall) else None

    @property
    def log_level(self) -> LogLevel | None:
        """The level of log messages that the call was started with; `None`: none."""
        return self._started.published_call.log_level if isinstance(self._started, PendingCall) else None

    @property
    def waits_for_approval(self) -> bool:
        """Whether it needs an approval first: no worker has it yet."""
        return isinstance(self._started, PendingCall) and self._started.expires_at is not None

    @property
    def has_ended(self) -> bool:
        """Whether its result is known here."""
        return isinstance(self._started, ToolResult) or self._started.ending.done()

    @property
    def has_joined(self) -> bool:
        """Whether it returns the result of an earlier call, with the same idempotency key."""
        return isinstance(self._started, Joined)

    async def end_within(self, seconds: float, closing: Closing | None = None) -> ToolResult | None:
        """Return the call's result; `None` without one after `seconds`, or when `closing` begins.

        The call continues in any case.
        """
        if isinstance(self._started, ToolResult):
            return self._started
        ending, loop = self._started.ending, asyncio.get_running_loop()
        if not ending.done() and seconds > 0:
            waiter: asyncio.Future[None] = loop.create_future()

            def wake(_: object = None) -> None:
                if not waiter.done():
                    waiter.set_result(None)

            ending.add_done_callback(wake)
            timer = loop.call_later(seconds, wake)
            number = None if closing is None else closing.tell(wake)
            try:
                await waiter
            finally:
                timer.cancel()
                ending.remove_done_callback(wake)
                if closing is not None and number is not None:
                    closing.forget(number)
        return ending.result() if ending.done() and not ending.cancelled() else None

    async def next_stop(self, seconds: float, closing: Closing | None = None) -> ToolResult | PendingInput | None:
        """Implements `CallHandle.next_stop`. The call continues in any case."""
        return await self._handle.next_stop(seconds, closing)

    async def answer(self, responses: Mapping[str, Any], *, number: int | None = None) -> bool:
        """Implements `CallHandle.answer`."""
        return await self._handle.answer(responses, number=number)

    async def is_kept_within(self, seconds: float) -> bool:
        """Return whether any process can continue the call, as soon as that is known: Redis has confirmed it."""
        return not isinstance(self._started, PendingCall) or await self._started.is_confirmed_within(seconds)

    async def cancel(self) -> None:
        """Implements `CallHandle.cancel`."""
        await self._handle.cancel()

    async def status(self) -> CallStatus:
        """Implements `CallHandle.status`."""
        return await self._handle.status()

    def progress(self) -> AsyncGenerator[Progress]:
        """Implements `CallHandle.progress`."""
        return self._handle.progress()

    def log(self) -> AsyncGenerator[LogMessage]:
        """Implements `CallHandle.log`."""
        return self._handle.log()

    def leave(self) -> None:
        """Follow an attached call no further: it goes on."""
        if isinstance(self._started, PendingCall):
            self._started.leave()
