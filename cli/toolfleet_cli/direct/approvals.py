"""Asks Redis for calls that wait for approvals, and takes decisions of the command line."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from toolfleet_cli.console.output import fail, progress
from toolfleet_registry.errors import ApprovalNotTaken
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet_tasks.approvals.approvers import Approver
    from toolfleet_tasks.approvals.shown import ShownApproval
    from toolfleet_tasks.client.namespaces.approvals import FleetApprovals

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RedisApprovals:
    """The approvals in Redis, for the command line, as an owner; `by` is the user's id.

    A decision that is not accepted ends the command.
    """

    by: str | None = None

    def listed(self, *, settled: bool, limit: int, offset: int) -> "list[ShownApproval]":
        """Return those that expire next, or the last that no longer wait."""
        from toolfleet_tasks.approvals.shown import shown

        async def ask(approvals: "FleetApprovals") -> "list[ShownApproval]":
            found = await approvals.list(settled=settled, limit=limit, offset=offset)
            return [shown(each, self._approver()) for each in found]

        return self._ask(ask)

    def shown(self, approval_id: str) -> "ShownApproval":
        """One of them."""
        from toolfleet_tasks.approvals.shown import shown

        async def ask(approvals: "FleetApprovals") -> "ShownApproval":
            return shown(await approvals.show(approval_id), self._approver())

        return self._ask(ask)

    def approved(
        self, approval_id: str, arguments: dict[str, Any] | None, reason: str, seen: str | None
    ) -> "ShownApproval":
        """Approve the call in the name of the operator at this terminal, who has `seen` this binding."""
        from toolfleet_tasks.approvals.shown import shown

        async def ask(approvals: "FleetApprovals") -> "ShownApproval":
            who = self._approver()
            found = await approvals.approve(approval_id, who, arguments=arguments, reason=reason, seen=seen)
            return shown(found, who)

        return self._ask(ask)

    def rejected(self, approval_id: str, reason: str, seen: str | None) -> None:
        """Reject it as this user."""

        async def ask(approvals: "FleetApprovals") -> None:
            await approvals.reject(approval_id, self._approver(), reason=reason, seen=seen)

        self._ask(ask)

    def _approver(self) -> "Approver":
        from toolfleet_tasks.approvals.approvers import Approver
        from toolfleet_tasks.operations.change_trail import Actor

        actor = Actor.at_command_line(self.by)
        return Approver(actor.by, actor.user_id, "owner")

    @staticmethod
    def _ask(question: "Callable[[FleetApprovals], Coroutine[Any, Any, T]]") -> T:
        from toolfleet_tasks.client.fleet import ToolFleet

        async def run() -> T:
            async with progress("Asking Redis"), ToolFleet(settings=load_settings()) as fleet:
                return await question(fleet.approvals)

        try:
            return asyncio.run(run())
        except ApprovalNotTaken as exc:
            fail(" ".join(filter(None, (str(exc), exc.hint))), code=1)
        except ValueError as exc:
            fail(str(exc), code=1)
