"""Waits beside whoever has sent a call: for its end, for progress to tell, and for the client to go."""

import asyncio
import math
from types import TracebackType
from typing import Self

from starlette.requests import Request

from toolfleet_modules.once.shared_work import Work
from toolfleet_registry.time.shared_timers import shared_timers

# Until somebody watches whether the client is there: most calls have ended by then, and need no task for it.
_WATCH_SECONDS = 0.2
_SWEEP_SECONDS = 0.05  # between two looks for waits that are that old


class ClientWatches:
    """Has the clients of those requests watched whose calls take long. One timer is for all: one a call would be a part of what a call costs."""

    def __init__(self) -> None:
        self._waits = dict[ReplyWait, float]()  # when each is to be watched, the next first
        self._is_set = False

    def add(self, wait: "ReplyWait") -> None:
        """Have it watched when it is old enough."""
        loop = asyncio.get_running_loop()
        self._waits[wait] = loop.time() + _WATCH_SECONDS
        if not self._is_set:
            self._is_set = True
            loop.call_later(_WATCH_SECONDS, self._sweep, loop)

    def remove(self, wait: "ReplyWait") -> None:
        """It is over."""
        self._waits.pop(wait, None)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for wait, watch_at in list(self._waits.items()):
            if watch_at > now:
                loop.call_at(max(watch_at, now + _SWEEP_SECONDS), self._sweep, loop)
                return
            del self._waits[wait]
            wait.watch()
        self._is_set = False


class ReplyWait:
    """One request's waiting for `work`, until `ends_at` by the loop's clock. Enter it to wait."""

    def __init__(self, work: Work, request: Request, ends_at: float, watches: ClientWatches) -> None:
        self._work, self._request, self._ends_at, self._watches = work, request, ends_at, watches
        self._loop = asyncio.get_running_loop()
        self._going: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._work.task.add_done_callback(self._wake)
        self._work.watchers.add(self._wake)
        self._watches.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.task.remove_done_callback(self._wake)
        self._work.watchers.discard(self._wake)
        self._watches.remove(self)
        if self._going is not None:
            self._going.cancel()

    @property
    def is_client_gone(self) -> bool:
        """Whether nobody reads an answer any more."""
        return self._going is not None and self._going.done()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._work.task.done() or self.is_client_gone or self._loop.time() >= self._ends_at

    async def wait(self, until: float) -> None:
        """Return when something may have changed, and at `until` by the loop's clock."""
        self._waiter = self._loop.create_future()
        until = min(until, self._ends_at)
        timer = None if until == math.inf else shared_timers(self._loop).call_at(until, self._wake)
        try:
            await self._waiter
        finally:
            if timer is not None:
                timer.cancel()

    def watch(self) -> None:
        """Notice from now on if the client goes. For `ClientWatches`."""
        self._going = asyncio.ensure_future(_client_gone(self._request))
        self._going.add_done_callback(self._wake)

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def _client_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
