"""Has people decide about calls; each decision has its line in the audit."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from toolfleet_registry.settings import Settings
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.records import StoredApproval
from toolfleet_tasks.approvals.service import ApprovalService
from toolfleet_tasks.operations.change_trail import Actor, ChangeTrail


class ApprovalChanges:
    """The decisions of one person. Raises as `ApprovalService` does."""

    def __init__(self, service: ApprovalService, trail: ChangeTrail, approver: Approver) -> None:
        self._service, self._trail, self._approver = service, trail, approver

    @classmethod
    @asynccontextmanager
    async def of(cls, service: ApprovalService, settings: Settings, approver: Approver) -> AsyncGenerator[Self]:
        """Open the changes for the fleet of these settings."""
        async with ChangeTrail.of(settings, Actor(approver.user_id, approver.by)) as trail:
            yield cls(service, trail, approver)

    async def approve(
        self,
        approval_id: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        reason: str = "",
        seen: str | None = None,
    ) -> StoredApproval:
        """Implements `ApprovalService.approve`. The audit line has neither the arguments nor the reason."""
        async with self._trail.change("call_approved", approval_id) as change:
            found = await self._service.approve(
                approval_id, self._approver, arguments=arguments, reason=reason, seen=seen
            )
            change.facts |= {"call_tool": found.request.tool_name, "state": found.state, "edited": int(bool(arguments))}
            return found

    async def reject(self, approval_id: str, *, reason: str = "", seen: str | None = None) -> StoredApproval:
        """Implements `ApprovalService.reject`."""
        async with self._trail.change("call_rejected", approval_id) as change:
            found = await self._service.reject(approval_id, self._approver, reason=reason, seen=seen)
            change.facts["call_tool"] = found.request.tool_name
            return found
