"""Asks a gateway for calls that wait for people, and tells it what the holder of a key decides."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolfleet_cli.remote.gateway import Gateway, place

if TYPE_CHECKING:
    from toolfleet_tasks.approvals.shown import ShownApproval


@dataclass(frozen=True, slots=True)
class GatewayApprovals:
    """The approvals that a key's holder sees, as a gateway has them. What it refuses ends the command."""

    gateway: Gateway

    def listed(self, *, settled: bool, limit: int, offset: int) -> "list[ShownApproval]":
        """Return those that expire next, or the last that no longer wait."""
        query = {"settled": str(settled).lower(), "limit": limit, "offset": offset}
        return [_approval(each) for each in self.gateway.get("/approvals", query)["approvals"]]

    def shown(self, approval_id: str) -> "ShownApproval":
        """One of them."""
        return _approval(self.gateway.get(place("approvals", approval_id)))

    def approved(
        self, approval_id: str, arguments: dict[str, Any] | None, reason: str, seen: str | None
    ) -> "ShownApproval":
        """The same, approved by the key's holder, who has `seen` the call of this binding."""
        body = {"decision": "approve", "reason": reason, "arguments": arguments, "seen": seen}
        return _approval(self.gateway.post(place("approvals", approval_id), body))

    def rejected(self, approval_id: str, reason: str, seen: str | None) -> None:
        """Rejected by the key's holder."""
        body = {"decision": "reject", "reason": reason, "seen": seen}
        self.gateway.post(place("approvals", approval_id), body)


def _approval(found: dict[str, Any]) -> "ShownApproval":
    from toolfleet_tasks.approvals.shown import ShownApproval

    return ShownApproval.model_validate(found)
