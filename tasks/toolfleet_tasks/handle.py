"""A call that is under way, in its caller's hands."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import Audit, PublishedCall, ToolResult
from toolfleet_tasks import endings
from toolfleet_tasks.inbox import Inbox, Meta
from toolfleet_tasks.results import result_of

Status = Literal["queued", "running", "retrying", "done", "unknown"]
"""Where a call is. `unknown`: Redis does not answer now."""

_STATUSES: dict[str, Status] = {"STARTED": "running", "RETRY": "retrying", "PENDING": "queued", "RECEIVED": "queued"}


class CallHandle:
    """One call: its `id`, its `result`, its `status`, and a way to `cancel` it."""

    def __init__(
        self, call_id: str, tool_name: str, ending: asyncio.Future[ToolResult], follow: "Follow | None" = None
    ) -> None:
        self.id = call_id
        self.tool_name = tool_name
        self._ending = ending
        self._follow = follow

    async def result(self, timeout: float | None = None) -> ToolResult:  # noqa: ASYNC109 - part of our public face
        """How the call ended: comes by its deadline at the latest.

        Raises `TimeoutError` when `timeout` seconds pass before; the call goes on and can be asked for again.
        """
        async with asyncio.timeout(timeout):
            return await asyncio.shield(self._ending)

    async def cancel(self) -> None:
        """Take the call back: one that waits never begins, one that runs is interrupted. Its result says `cancelled`."""
        if self._follow is not None and not self._ending.done():
            await self._follow.cancel()

    async def status(self) -> Status:
        """Where the call is now."""
        if self._follow is None or self._ending.done():
            return "done"
        return await self._follow.status()


class Follow:
    """Follows one published call to its `ending`: a worker's result, or at the deadline ours.

    `witness` is a key that is in Redis as long as Redis has lost nothing. `revoke` tells the workers to drop a call,
    `spawn` runs something in the background. Not a task a call: a future, and a timer of the loop.
    """

    def __init__(
        self,
        call: PublishedCall,
        inbox: Inbox,
        *,
        witness: str,
        revoke: Callable[[str], asyncio.Task[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.call_id = call.call_id
        self.tool_name = call.tool_name
        self.ending: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        self._limit_seconds = call.limit_seconds
        self._inbox = inbox
        self._witness = witness
        self._revoke = revoke
        self._spawn = spawn
        self._expected = inbox.expect(call.call_id, self)
        self._timer: asyncio.TimerHandle | None = None
        self._is_cancelled = self._is_expired = False

    def published(self, deadline_at: float) -> None:
        """The call is in its queue. From now on its deadline is watched, in seconds since the epoch."""
        if not self.ending.done():
            self._timer = self.ending.get_loop().call_later(deadline_at - time.time(), self._expire)

    def ended(self, meta: Meta) -> None:
        """As `Waiter`."""
        self._end(self._result_of(meta))

    def left(self) -> None:
        """As `Waiter`."""
        self._end(endings.outcome_unknown(self.tool_name, "the agent left the fleet before the call had ended."))

    def refuse(self, result: ToolResult) -> None:
        """The call is not in its queue, or perhaps not: it ends so, unless its result is there already."""
        self._inbox.forget(self.call_id)
        self._end(result)

    def give_up(self) -> None:
        """The caller has gone: take the call back."""
        if not self.ending.done() or self.ending.cancelled():
            self._stop_timer()
            self._inbox.forget(self.call_id)
            self.ending.cancel()
            self._revoke(self.call_id)

    async def cancel(self) -> None:
        """Tell the workers."""
        self._is_cancelled = True
        await asyncio.shield(self._revoke(self.call_id))

    async def status(self) -> Status:
        """What Celery has noted last."""
        try:
            meta = await self._inbox.peek(self.call_id)
        except (OSError, ResponseError):
            return "unknown"
        return "queued" if meta is None else _STATUSES.get(meta["status"], "done")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, result: ToolResult) -> None:
        self._stop_timer()
        if not self.ending.done():
            self.ending.set_result(audited(self.call_id, result))

    def _expire(self) -> None:
        self._is_expired = True
        self._revoke(self.call_id)  # a worker whose clock is behind ours must not begin it now
        self._spawn(self._expired())

    async def _expired(self) -> None:
        try:
            result = await self._at_deadline()
        except (OSError, ResponseError):
            result = endings.unanswered(self.tool_name)
        self._inbox.forget(self.call_id)
        self._end(result)

    async def _at_deadline(self) -> ToolResult:
        """A worker marks a call as started before it looks at the deadline: no mark now, so it never begins."""
        meta = await self._inbox.peek(self.call_id)
        if meta is None and await self._inbox.is_surely_unbegun(self._expected, witness=self._witness):
            return endings.expired(self.tool_name)
        if meta is None or meta["status"] in _STATUSES:
            return endings.unanswered(self.tool_name)
        return self._result_of(meta)

    def _result_of(self, meta: Meta) -> ToolResult:
        if meta["status"] == "REVOKED" and self._is_expired and not self._is_cancelled:  # it was we, at the deadline
            return endings.unanswered(self.tool_name)
        return result_of(meta, tool_name=self.tool_name, limit_seconds=self._limit_seconds)


def audited(call_id: str, result: ToolResult) -> ToolResult:
    """The result with what is known of the call: a worker's own audit, or ours."""
    if result.audit is not None:
        return result
    return result.model_copy(update={"audit": Audit(call_id=call_id, tool=result.tool_name, ts=time.time())})
