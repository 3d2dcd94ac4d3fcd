"""Lists calls that wait for people, and takes what they decide: `fleet.approvals`."""

import asyncio
import builtins
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from toolfleet_registry.contracts import Caller
from toolfleet_registry.contracts.calls import ApprovalRule
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.feed import ApprovalEvent
from toolfleet_tasks.approvals.records import ListedApproval, StoredApproval
from toolfleet_tasks.approvals.service import ApprovalService
from toolfleet_tasks.client.session import Sessions
from toolfleet_tasks.client.sync_face import SyncFace, blocking
from toolfleet_tasks.operations.change_trail import Actor, ChangeKind, ChangeTrail, OperatorChange

_READ_SECONDS = 5.0  # for Redis to say what it has: its connection would ask again for as long as it is silent


class FleetApprovals:
    """The calls that people have to approve. Their ids are those of the calls.

    Each method raises `FleetUnavailable` when Redis does not answer. What people decide has its line in the audit.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def keep_asked(self, user_id: str | None, idempotency_key: str, found: StoredApproval) -> None:
        """Store the call of a user's key: a step repeated after that call has ended finds its end, and asks no approver again."""
        session = await self._sessions.opened()
        async with _answering():
            await session.approvals.records.keep_asked(user_id, idempotency_key, found.request)

    async def asked(self, user_id: str | None, idempotency_key: str) -> str | None:
        """The id of that call; `None` for none."""
        session = await self._sessions.opened()
        async with _answering():
            return await session.approvals.records.asked(user_id, idempotency_key)

    async def list(
        self,
        *,
        settled: bool = False,
        limit: int = 50,
        offset: int = 0,
        viewer: Approver | None = None,
        conversation_id: str | None = None,
    ) -> builtins.list[ListedApproval]:
        """List at most `limit` of those that wait, the next to expire first; or of the last that were `settled`, the last first.

        With a `viewer` only those that they may decide, or have asked for. Arguments of more than 16 KiB are left out: `show` has them.
        """
        from toolfleet_tasks.approvals.shown import may_see  # noqa: PLC0415 - takes a while to load, and most agents list nothing

        session = await self._sessions.opened()
        async with _answering():
            return await session.approvals.records.page(
                settled=settled,
                limit=limit,
                offset=offset,
                viewer=viewer,
                conversation_id=conversation_id,
                keep=lambda each: viewer is None or may_see(each, viewer),
            )

    async def count(self) -> int:
        """Count those that are not settled."""
        session = await self._sessions.opened()
        async with _answering():
            return await session.approvals.records.count()

    async def show(self, approval_id: str) -> StoredApproval:
        """Return one of them. Raises `ApprovalNotTaken` for none."""
        session = await self._sessions.opened()
        async with _answering():
            return await session.approvals.show(approval_id)

    async def approve(
        self,
        approval_id: str,
        approver: Approver,
        *,
        arguments: Mapping[str, Any] | None = None,
        reason: str = "",
        seen: str | None = None,
    ) -> StoredApproval:
        """Approve a call, which begins with the last approval that it needs; perhaps with other `arguments`, by their names.

        After such a change what others have approved counts no more. `seen`: the `binding` of the request that the approver was
        shown; if it is another one now, the decision is not taken (`changed`), nor is one without it where a quorum is above 1, or
        once the call was edited (`unseen`). Raises `ApprovalNotTaken`, and `ValueError` for arguments that
        the tool does not take.
        """
        async with self._change("call_approved", approval_id, approver) as (service, change):
            found = await service.approve(approval_id, approver, arguments=arguments, reason=reason, seen=seen)
            change.facts |= {"call_tool": found.request.tool_name, "state": found.state, "edited": int(bool(arguments))}
            return found

    async def reject(
        self, approval_id: str, approver: Approver, *, reason: str = "", seen: str | None = None
    ) -> StoredApproval:
        """Reject a call, which ends with that; its agent is told the `reason`. `seen` as of `approve`. Raises `ApprovalNotTaken`."""
        async with self._change("call_rejected", approval_id, approver) as (service, change):
            found = await service.reject(approval_id, approver, reason=reason, seen=seen)
            change.facts["call_tool"] = found.request.tool_name
            return found

    async def events(self, after: str | None = None) -> AsyncGenerator[ApprovalEvent]:
        """Yield the events of all approvals, from now on or since the event of the id `after`.

        The first one is `following`, or `events_lost` if unread events are gone. While Redis is away it waits.
        """
        session = await self._sessions.opened()
        async with aclosing(session.approval_feed.follow(after)) as events:
            async for event in events:
                yield event

    async def steps(self, approval_id: str, is_over: Callable[[], bool]) -> AsyncGenerator[ListedApproval]:
        """Follow one approval: as it is, and after each step, until people have decided or `is_over`. Of none there is nothing."""
        session = await self._sessions.opened()
        async with aclosing(session.approval_feed.of(approval_id, is_over)) as steps:
            async for step in steps:
                yield step

    async def rules(self, tool_name: str, caller: Caller) -> tuple[ApprovalRule, ...]:
        """Return the rules by which such a call of the caller needs an approval now; empty if it needs none.

        From memory.
        """
        return (await self._sessions.opened()).preparation.approval_rules(tool_name, caller)

    @asynccontextmanager
    async def _change(
        self, kind: ChangeKind, approval_id: str, approver: Approver
    ) -> AsyncGenerator[tuple[ApprovalService, OperatorChange]]:
        """Write the decision's line into the audit, which has neither arguments nor reasons."""
        session = await self._sessions.opened()
        actor = Actor(approver.user_id, approver.by)
        async with ChangeTrail.of(session.settings, actor) as trail, trail.change(kind, approval_id) as change:
            yield session.approvals, change


class SyncFleetApprovals(SyncFace[FleetApprovals]):
    """`FleetApprovals` with plain methods."""

    list = blocking(FleetApprovals.list)
    count = blocking(FleetApprovals.count)
    show = blocking(FleetApprovals.show)
    approve = blocking(FleetApprovals.approve)
    reject = blocking(FleetApprovals.reject)
    rules = blocking(FleetApprovals.rules)
    asked = blocking(FleetApprovals.asked)
    keep_asked = blocking(FleetApprovals.keep_asked)

    def events(self, after: str | None = None) -> Generator[ApprovalEvent]:
        """Implements `FleetApprovals.events`."""
        return self._each(self._face.events(after))

    def steps(self, approval_id: str, is_over: Callable[[], bool]) -> Generator[ListedApproval]:
        """Implements `FleetApprovals.steps`."""
        return self._each(self._face.steps(approval_id, is_over))


@asynccontextmanager
async def _answering() -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(_READ_SECONDS):
            yield
    except OSError as exc:  # a lost connection and the time that is over are both
        raise FleetUnavailable("Redis does not say what waits for people: ask again.") from exc
