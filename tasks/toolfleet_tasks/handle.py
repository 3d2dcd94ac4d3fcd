"""A call that is under way, in its caller's hands."""

import asyncio
import time
from collections.abc import Callable
from typing import Literal

from redis.exceptions import RedisError

from toolfleet_registry.contracts import Audit, PublishedCall, ToolResult
from toolfleet_tasks import endings
from toolfleet_tasks.cancelling import is_wanted
from toolfleet_tasks.inbox import Expected, Inbox
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
            try:
                return await asyncio.shield(self._ending)
            except asyncio.CancelledError:
                if not (self._ending.cancelled() and is_wanted()):
                    raise
        # Nobody but the fleet cancels the ending: it was left.
        return endings.outcome_unknown(self.tool_name, "the agent left the fleet before the call had ended.")

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
    """Follows one published call to its end."""

    def __init__(
        self, call: PublishedCall, expected: Expected, inbox: Inbox, *, revoke: Callable[[str], asyncio.Task[None]]
    ) -> None:
        self._call = call
        self._expected = expected
        self._inbox = inbox
        self._revoke = revoke

    async def ending(self) -> ToolResult:
        """The call's result: a worker's, or at the deadline ours."""
        result = await self._end()
        if result.audit is not None:
            return result
        audit = Audit(call_id=self._call.call_id, tool=self._call.tool_name, ts=time.time())
        return result.model_copy(update={"audit": audit})

    async def _end(self) -> ToolResult:
        try:
            async with asyncio.timeout(self._call.deadline_at - time.time()):
                meta = await asyncio.shield(self._expected.meta)
            return result_of(meta, tool_name=self._call.tool_name, limit_seconds=self._call.limit_seconds)
        except TimeoutError:
            self._revoke(self._call.call_id)  # a worker whose clock is behind ours must not begin it now
            return await self._at_deadline()
        finally:
            self._inbox.forget(self._call.call_id)

    async def cancel(self) -> None:
        """Tell the workers."""
        await self._revoke(self._call.call_id)

    async def status(self) -> Status:
        """What Celery has noted last."""
        try:
            meta = await self._inbox.peek(self._call.call_id)
        except (RedisError, OSError):
            return "unknown"
        return "queued" if meta is None else _STATUSES.get(meta["status"], "done")

    async def _at_deadline(self) -> ToolResult:
        """A worker marks a call as started before it looks at the deadline: no mark now, so it never begins."""
        try:
            meta = await self._inbox.peek(self._call.call_id)
        except (RedisError, OSError):
            return endings.unanswered(self._call.tool_name)
        if meta is None and not self._expected.begun:
            return endings.expired(self._call.tool_name)
        if meta is None or meta["status"] in _STATUSES:
            return endings.unanswered(self._call.tool_name)
        return result_of(meta, tool_name=self._call.tool_name, limit_seconds=self._call.limit_seconds)
