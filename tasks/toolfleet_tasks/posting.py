"""How a call that was judged gets under way: somebody listens for its end, it is let in and published, or waits for that."""

import asyncio
import functools
import time
from collections.abc import Callable

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.errors import NotPublished, PublishUnconfirmed
from toolfleet_tasks import endings
from toolfleet_tasks.entrance import Entrance, Refusal, refused
from toolfleet_tasks.gate import Publisher
from toolfleet_tasks.handle import Follow
from toolfleet_tasks.inbox import Inbox
from toolfleet_tasks.joining import Joined, Joins
from toolfleet_tasks.line import Line
from toolfleet_tasks.queues import Route
from toolfleet_tasks.turns import Share, Turns

_PUBLISH_SECONDS = 10.0  # to get a call into its queue; longer, and the caller hears that the queue is away

Started = Follow | Joined | ToolResult
"""What becomes of a call: it is published, it has joined another, or it has ended already."""


class Posting:
    """Gets calls under way. Results arrive over `line`; `follow` listens for the end of a call of ours.

    Belongs to the line's event loop.
    """

    def __init__(
        self,
        publisher: Publisher,
        entrance: Entrance,
        joins: Joins,
        *,
        inbox: Inbox,
        line: Line,
        follow: Callable[[PublishedCall], Follow],
    ) -> None:
        self._publisher = publisher
        self._entrance = entrance
        self._joins = joins
        self._inbox = inbox
        self._line = line
        self._follow = follow
        self._turns = Turns()
        self._loop = asyncio.get_running_loop()

    async def post(self, call: PublishedCall, route: Route, *, waits: bool) -> Started:
        """Publish a call, or end it. Over its caller's share it waits for its turn, if it `waits`, until its deadline."""
        share, ticket, has_waited = (call.lane, call.user_id), self._turns.ticket(), False
        while True:
            if waits and (has_waited or self._turns.is_awaited(share)):
                refusal = await self._turn(call, share, ticket)
                if refusal is not None:
                    return refusal
                has_waited = True
            try:
                started = await self._try(call, route)
            except BaseException:
                self._turns.free(share)
                raise
            if not (waits and isinstance(started, Refusal) and started.kind == "share"):
                break
            has_waited = True
        if has_waited:
            self._turns.free(share)  # others may have room, too
        if not isinstance(started, Refusal):
            return started
        if started.kind == "joined":
            return self._joins.join(call, started.call_id)
        return _result(call, started)

    async def detach(self, call: PublishedCall, route: Route, *, most_waiting: int) -> ToolResult | Refusal | None:
        """Publish a call for whose end nobody waits here, unless so many wait for its module; its result if it is in no queue.

        Or the refusal that names the call that its idempotency key stands for. Raises `PublishUnconfirmed`: it may be in
        its queue, or was begun before (`BegunBefore`).
        """
        refusal = await self._publish(call, route, most_waiting=most_waiting)
        if refusal is None or (isinstance(refusal, Refusal) and refusal.kind == "joined"):
            return refusal
        return _result(call, refusal)

    def close(self) -> None:
        """Who waits for a turn is told that the fleet was left."""
        self._turns.close()

    async def _turn(self, call: PublishedCall, share: Share, ticket: int) -> ToolResult | None:
        """Wait for a try; a result if there is none."""
        try:
            await self._turns.wait(share, ticket, until=self._loop.time() + call.deadline_at - time.time())
        except TimeoutError:
            return endings.expired(call.tool_name)
        except NotPublished as exc:
            return endings.not_published(call.tool_name, str(exc))
        return None

    async def _try(self, call: PublishedCall, route: Route) -> Follow | Refusal | ToolResult:
        """Listen for the call's end, and publish it."""
        follow, refusal = self._follow(call), None
        if call.idempotency_key is not None:
            self._joins.offer(follow)  # a repeat may hear of it before we do
        try:
            refusal = await self._publish(call, route)
            follow.published(call.deadline_at)
        except PublishUnconfirmed:
            follow.unconfirmed(call.deadline_at)
        except BaseException:
            follow.give_up()  # it may have got into its queue just now
            raise
        if refusal is not None:
            follow.unpublished()
            self._joins.take_back(follow, _result(call, refusal))
            return refusal
        follow.ending.add_done_callback(functools.partial(self._ended, (call.lane, call.user_id)))
        return follow

    async def _publish(
        self, call: PublishedCall, route: Route, *, most_waiting: int | None = None
    ) -> Refusal | ToolResult | None:
        """Get the call into its queue; `None`, or why it is not in it. Raises `PublishUnconfirmed`."""
        seconds = min(_PUBLISH_SECONDS, call.deadline_at - time.time())
        limit = self._entrance.backlog_limit(call)
        limit = limit if most_waiting is None else min(limit, most_waiting)
        try:
            return await self._publisher.publish(call, route, seconds=seconds, limit=limit)
        except NotPublished as exc:
            if time.time() >= call.deadline_at and self._line.is_connected:
                return endings.expired(call.tool_name)
            return endings.not_published(call.tool_name, str(exc) or "Redis does not answer")

    def _ended(self, share: Share, _: object) -> None:
        self._turns.free(share)


def _result(call: PublishedCall, refusal: Refusal | ToolResult) -> ToolResult:
    return refusal if isinstance(refusal, ToolResult) else refused(call.tool_name, refusal)
