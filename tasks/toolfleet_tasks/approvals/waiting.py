"""Has an agent's call wait for people, and follows it through their decision to its end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.errors import NotPublished
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.admission import Refusal, refused
from toolfleet_tasks.approvals.service import ApprovalService
from toolfleet_tasks.calls.idempotency import Joined, KeyedCalls
from toolfleet_tasks.calls.pending_call import PendingCall
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.redis_connection import RedisConnectionLost

_ASK_SECONDS = 10.0
_POLL_SECONDS = 1.0  # between two looks at where a call is of which nothing is heard

Waiting: TypeAlias = PendingCall | Joined | ToolResult
"""A call that waits for people, or for another one's result; or what has become of it."""


class CallsToApprove:
    """The calls of one session that wait for people.

    `listening` waits until a call's end is heard; `before` is told of each call that is about to wait.
    """

    def __init__(
        self,
        service: ApprovalService,
        keyed_calls: KeyedCalls,
        follow: Callable[[PublishedCall], PendingCall],
        listening: Callable[[str], Awaitable[None]],
        before: Callable[[PublishedCall], None],
    ) -> None:
        self._service, self._keyed_calls = service, keyed_calls
        self._follow, self._listening, self._before = follow, listening, before

    async def begin(self, call: PublishedCall, conversation_id: str | None) -> Waiting:
        """Have the call wait. It is followed until people have decided, and then until the deadline that it gets from them."""
        rules = self._service.rules_of(call)
        if call.approval is None or not rules:  # its agent's profile was changed just now
            return fleet_results.changed(call.tool_name, "changed: its agent's profile is another one now")
        longest = min(rule.expires_seconds for rule in rules) + call.approval.seconds
        followed = call.model_copy(update={"deadline_at": fleet_clock.now() + longest})
        pending = self._follow(followed)
        try:
            async with asyncio.timeout(min(_ASK_SECONDS, max(call.deadline_at - fleet_clock.now(), 0))):
                await self._listening(call.call_id)
                self._before(followed)
                request, refusal = await self._service.ask(call, rules, conversation_id)
        except (TimeoutError, RedisConnectionLost, ResponseError, NotPublished) as exc:
            pending.give_up()  # it may wait all the same
            return fleet_results.fleet_unavailable(call.tool_name, str(exc) or "Redis does not answer")
        except BaseException:
            pending.give_up()
            raise
        if refusal is not None:
            pending.unpublished()
            return self._refused(call, refusal)
        pending.expires_at, pending.may_wait = request.expires_at, True
        pending.published(followed.deadline_at)
        return pending

    def _refused(self, call: PublishedCall, refusal: Refusal) -> Joined | ToolResult:
        if refusal.kind == "joined":
            joined = self._keyed_calls.join(call, refusal.call_id)
            joined.may_wait = True
            return joined
        if refusal.kind == "crowd":
            return fleet_results.too_many_wait(call.tool_name, refusal.count)
        if refusal.kind == "ended":
            return fleet_results.outcome_unknown(call.tool_name, "the call had begun before it was to be approved.")
        return refused(call.tool_name, refusal)


async def decided(follow: Waiting, seconds: float) -> Waiting:
    """Return the call once people have decided about it; or, if they have not within `seconds`, the result that it waits.

    It then continues to wait.

    The same goes for one that has joined another, which waits. A call that needs no approval is returned at once. If
    the waiting task is cancelled, the call is cancelled.
    """
    pending = follow.source if isinstance(follow, Joined) and follow.may_wait else follow
    if not isinstance(pending, PendingCall) or isinstance(follow, ToolResult):
        return follow
    if (has_asked := pending is follow) and pending.expires_at is None:
        return follow
    waits = fleet_results.approval_required(follow.tool_name, pending.call_id, expires_at=pending.expires_at)
    changes = asyncio.Event()
    try:
        with pending.hearing(lambda _: changes.set()):
            until = asyncio.get_running_loop().time() + seconds
            while (left := until - asyncio.get_running_loop().time()) > 0 and not follow.ending.done():
                if await pending.status() != "waiting_approval":
                    return follow
                changes.clear()
                await _either(follow.ending, changes, min(left, _POLL_SECONDS))
        may_be_decided = seconds > 0 or not has_asked
        if follow.ending.done() or (may_be_decided and await pending.status() != "waiting_approval"):
            return follow
    except asyncio.CancelledError:
        follow.give_up()
        raise
    if isinstance(follow, PendingCall):
        follow.leave()
    else:  # the first caller's call goes on in any case
        follow.give_up()
    return waits


async def _either(ending: "asyncio.Future[ToolResult]", changes: asyncio.Event, seconds: float) -> None:
    """Wait until the call has ended, an event of it is heard, or the time is over."""
    heard = asyncio.ensure_future(changes.wait())
    waited: set[asyncio.Future[Any]] = {ending, heard}
    try:
        await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        heard.cancel()
