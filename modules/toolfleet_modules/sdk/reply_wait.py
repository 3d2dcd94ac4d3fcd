"""Waits beside whoever has sent a call: for its end, for progress to tell, and for the client to go."""

import asyncio
import math
from types import TracebackType
from typing import Self

from starlette.requests import Request

from toolfleet_modules.once.shared_work import Work

_WATCH_SECONDS = (
    0.05  # until somebody watches whether the client is there: most calls have ended by then, and need no task for it
)


class ReplyWait:
    """One request's waiting for `work`, until `ends_at` by the loop's clock. Enter it to wait."""

    def __init__(self, work: Work, request: Request, ends_at: float) -> None:
        self._work, self._request, self._ends_at = work, request, ends_at
        self._loop = asyncio.get_running_loop()
        self._watch_at = self._loop.time() + _WATCH_SECONDS
        self._going: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._work.task.add_done_callback(self._wake)
        self._work.watchers.add(self._wake)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.task.remove_done_callback(self._wake)
        self._work.watchers.discard(self._wake)
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
        until = min(until, self._ends_at, self._watch_at if self._going is None else math.inf)
        timer = None if until == math.inf else self._loop.call_at(until, self._wake)
        try:
            await self._waiter
        finally:
            if timer is not None:
                timer.cancel()
        if self._going is None and self._loop.time() >= self._watch_at:
            self._going = asyncio.ensure_future(_client_gone(self._request))
            self._going.add_done_callback(self._wake)

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def _client_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
