"""Gives a caller the handle of a call that is under way."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.call_context import LogMessage, Progress
from toolfleet_registry.contracts.calls import UNSPOKEN, Spoken
from toolfleet_registry.contracts.inputs import PendingInput
from toolfleet_registry.errors import InputNotTaken
from toolfleet_tasks.aio import Closing
from toolfleet_tasks.calls.pending_call import DONE, CallStatus, PendingCall
from toolfleet_tasks.results.listener import SIGNAL

_CHECK_SECONDS = 5.0  # what was announced may not have been heard


class CallHandle:
    """A call that is under way: its `id`, its `result`, its `status`, and a way to `cancel` it."""

    def __init__(
        self,
        call_id: str,
        tool_name: str,
        ending: asyncio.Future[ToolResult],
        follow: PendingCall | None = None,
        *,
        spoken: Spoken = UNSPOKEN,
    ) -> None:
        self.id = call_id
        self._spoken = spoken
        self.tool_name = tool_name
        self._ending = ending
        self._follow = follow

    async def result(self, timeout: float | None = None) -> ToolResult:
        """Wait for the call's result, which comes by its deadline at the latest.

        Args:
            timeout: Seconds to wait at most; by default until the call's deadline.

        Returns:
            The call's one result; every later call returns it at once.

        Raises:
            TimeoutError: The time is over before. The call continues, and can be awaited again.

        """
        async with asyncio.timeout(timeout):
            return _as_spoken(await asyncio.shield(self._ending), self._spoken)

    @property
    def approval_expires_at(self) -> float | None:
        """Return until when people may approve the call, in seconds since the epoch; `None` for a call without approval.

        The call waits for them without its handle too.
        """
        return None if self._follow is None else self._follow.expires_at

    async def cancel(self) -> None:
        """Cancel the call: one that waits is never started, one that runs is interrupted. Its result says `cancelled`."""
        if self._follow is not None and not self._ending.done():
            await self._follow.cancel()

    async def status(self) -> CallStatus:
        """Read where the call is.

        Returns:
            Its state, and its latest progress: `status.progress`.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        if self._follow is None or self._ending.done():
            return DONE
        return await self._follow.status()

    async def next_stop(self, seconds: float, closing: Closing | None = None) -> ToolResult | PendingInput | None:
        """Wait until the call has ended, or asks something.

        Args:
            seconds: How long to wait at most.
            closing: Ends the wait when it begins; for programs that are about to end.

        Returns:
            The result, or the question; `None` if there is neither within `seconds`.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        call = self._followed
        if call is None or self._ending.done():
            return self._ending.result() if self._ending.done() and not self._ending.cancelled() else None
        stop = await next_stop(call, self._ending, seconds, closing)
        return _as_spoken(stop, self._spoken) if isinstance(stop, ToolResult) else stop

    async def answer(self, responses: Mapping[str, Any], *, number: int | None = None) -> bool:
        """Answer the call's question.

        Args:
            responses: One object for each key of the question's requests.
            number: The number of the question, `PendingInput.round`; by default the present one.

        Returns:
            True if the answer was taken, False if the question has the same answer already.

        Raises:
            InputNotTaken: The call has ended, does not ask this, or was answered otherwise.
            ValueError: The answer is invalid.
            FleetUnavailable: Redis does not answer. The answer may have been taken; the same one may be given again.

        """
        if self._followed is None or self._ending.done():
            raise InputNotTaken(self.id, "ended")
        return await self._followed.answers.answer(self.id, number, responses)

    @property
    def _followed(self) -> PendingCall | None:
        return self._follow

    async def progress(self) -> AsyncGenerator[Progress]:
        """Follow the call's progress, from the latest on, until the call ends: `async for progress in handle.progress()`.

        It comes a few times a second at most; updates between two steps of the loop are not kept. Any number of loops
        may follow one call.

        Yields:
            What the tool reports.

        """
        if self._follow is not None:
            async with contextlib.aclosing(self._follow.progress(self._ending)) as steps:
                async for progress in steps:
                    yield progress

    async def log(self) -> AsyncGenerator[LogMessage]:
        """Follow the tool's log messages, of a call with a `log_level`: from the first message on, until the call ends.

        Messages sent while there is no connection are not kept. Any number of loops may follow one call.

        Yields:
            The messages.

        """
        if self._follow is not None:
            async with contextlib.aclosing(self._follow.log(self._ending)) as messages:
                async for message in messages:
                    yield message


def _as_spoken(result: ToolResult, spoken: Spoken) -> ToolResult:
    if not spoken.format:  # no model has asked for it
        return result
    from toolfleet_registry.formats import as_spoken  # with all that translates tools for models

    return as_spoken(result, spoken)


async def next_stop(
    call: PendingCall, ending: "asyncio.Future[ToolResult]", seconds: float, closing: Closing | None = None
) -> ToolResult | PendingInput | None:
    """Return the call's result, by `ending`, or its question; `None` if there is neither in `seconds`, or when `closing` begins."""
    loop = asyncio.get_running_loop()
    woken, until = asyncio.Event(), loop.time() + seconds

    def hear(content: bytes) -> None:
        if content == SIGNAL:
            woken.set()

    def wake(_: object = None) -> None:
        woken.set()

    ending.add_done_callback(wake)
    number = None if closing is None else closing.tell(wake)
    try:
        with call.hearing(hear):
            while not ending.done():
                if (asked := await call.pending_input()) is not None:
                    return asked
                left = until - loop.time()
                if left <= 0 or (closing is not None and closing.has_begun):
                    break
                await _woken(woken, min(left, _CHECK_SECONDS))
    finally:
        ending.remove_done_callback(wake)
        if closing is not None and number is not None:
            closing.forget(number)
    return ending.result() if ending.done() and not ending.cancelled() else None


async def _woken(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
    event.clear()
