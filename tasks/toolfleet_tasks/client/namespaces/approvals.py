"""Lists calls that wait for people, and takes what they decide: `fleet.approvals`."""

import builtins
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from toolfleet_registry.contracts import Caller
from toolfleet_registry.contracts.approvals.terms import ApprovalRule
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.changes import ApprovalChanges
from toolfleet_tasks.approvals.records import StoredApproval
from toolfleet_tasks.client.sessions import Sessions
from toolfleet_tasks.client.sync_face import SyncFace, blocking


class FleetApprovals:
    """The calls that people have to approve. Their ids are those of the calls.

    Each method raises `FleetUnavailable` when Redis does not answer. What people decide has its line in the audit.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def keep_asked(self, user_id: str | None, idempotency_key: str, found: StoredApproval) -> None:
        """Keep which call a user's key has stood for: whoever repeats a step after that has ended finds its end, and asks nobody anew."""
        session = await self._sessions.opened()
        await session.approvals.records.keep_asked(user_id, idempotency_key, found.request)

    async def asked(self, user_id: str | None, idempotency_key: str) -> str | None:
        """The id of that call; `None` for none."""
        return await (await self._sessions.opened()).approvals.records.asked(user_id, idempotency_key)

    async def list(self, *, settled: bool = False, limit: int = 50, offset: int = 0) -> builtins.list[StoredApproval]:
        """List at most `limit` of those that wait, the next to expire first; or of the last that were `settled`, the last first."""
        session = await self._sessions.opened()
        return await session.approvals.list(settled=settled, limit=limit, offset=offset)

    async def show(self, approval_id: str) -> StoredApproval:
        """Return one of them. Raises `ApprovalNotTaken` for none."""
        return await (await self._sessions.opened()).approvals.show(approval_id)

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

        After such a change what others have approved counts no more. `seen`: the `request.binding` of what they have seen, where the
        call may be another one by now: that is not approved then. Raises `ApprovalNotTaken`, and `ValueError` for arguments that
        the tool does not take.
        """
        async with self._changes(approver) as changes:
            return await changes.approve(approval_id, arguments=arguments, reason=reason, seen=seen)

    async def reject(self, approval_id: str, approver: Approver, *, reason: str = "") -> StoredApproval:
        """Reject a call, which ends with that; its agent is told the `reason`. Raises `ApprovalNotTaken`."""
        async with self._changes(approver) as changes:
            return await changes.reject(approval_id, reason=reason)

    async def rules(self, tool_name: str, caller: Caller) -> tuple[ApprovalRule, ...]:
        """The rules by which people have to approve such a call of the caller's, as they are now; none: it needs nobody. From memory."""
        return (await self._sessions.opened()).preparation.approval_rules(tool_name, caller)

    @asynccontextmanager
    async def _changes(self, approver: Approver) -> AsyncGenerator[ApprovalChanges]:
        session = await self._sessions.opened()
        async with ApprovalChanges.of(session.approvals, session.settings, approver) as changes:
            yield changes


class SyncFleetApprovals(SyncFace[FleetApprovals]):
    """`FleetApprovals` with plain methods."""

    list = blocking(FleetApprovals.list)
    show = blocking(FleetApprovals.show)
    approve = blocking(FleetApprovals.approve)
    reject = blocking(FleetApprovals.reject)
    rules = blocking(FleetApprovals.rules)
