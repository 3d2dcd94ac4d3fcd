"""Makes votes in the fleet of what people decide in an agent framework: the fleet's record decides, never the framework's."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import Caller, ToolResult
from toolfleet_registry.errors import ApprovalNotTaken, FleetUnavailable
from toolfleet_registry.policy.redaction import redacted
from toolfleet_tasks.adapters.framework_call import APPROVAL, DeferredStep
from toolfleet_tasks.approvals.approvers import Approver, missing_votes
from toolfleet_tasks.approvals.records import StoredApproval
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.messages import fleet_results

_READ_SECONDS = 5.0
_SHOWN = {"permission", "users", "keys", "quorum", "self_approval"}
_NOBODY = "The program names no approver in whose name that is decided."
_UNNAMED = "A decision names what was seen: 'id' and 'digest', as the question has them."
_NO_DECISION = "A decision is {'decision': 'approve' | 'reject', 'id', 'digest', 'reason', 'arguments'}; the last two may be left out."
_ANOTHER = "The decision is about another call."


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a call, made in a framework. `arguments` replace those of their names.

    `call_id` and `seen`: the call, and the digest of what the approver has seen, as in `ApprovalService.approve`.
    `fault`: why it is invalid, if it is.
    """

    approves: bool
    reason: str = ""
    arguments: Mapping[str, Any] | None = None
    call_id: str | None = None
    seen: str | None = None
    fault: str | None = None

    @classmethod
    def of(cls, value: object) -> "Decision | None":
        """Parse an application's decision; `None` for any other value that a framework is resumed with, such as `True`: that decides nothing."""
        if not isinstance(value, Mapping) or "decision" not in value:
            return None
        said, reason, arguments = value["decision"], value.get("reason") or "", value.get("arguments")
        call_id, seen = value.get("id"), value.get("digest")
        if said not in ("approve", "reject") or not (isinstance(reason, str) and isinstance(arguments, Mapping | None)):
            return cls(approves=False, fault=_NO_DECISION)
        # Where a step asks for several calls, what it is resumed with may change places.
        if not (isinstance(call_id, str) and isinstance(seen, str)):
            return cls(approves=False, fault=_UNNAMED)
        return cls(said == "approve", reason, arguments, call_id, seen)


class WaitsForApproval(Exception):
    """The call waits for people: `found` is what they are asked. `refusal`: why the last decision was not taken, if there was one."""

    def __init__(self, found: StoredApproval, refusal: str | None = None) -> None:
        super().__init__(f"Call {found.approval_id!r} of {found.request.tool_name!r} waits for an approval.")
        self.found = found
        self.refusal = refusal

    @property
    def step(self) -> DeferredStep:
        """The part of the call that its framework stores."""
        return DeferredStep(self.found.approval_id, self.found.request.tool_name, "approval")

    def to_json(self) -> dict[str, Any]:
        """The same, with the question."""
        return {**self.step.to_json(), APPROVAL: self.question()}

    def question(self) -> dict[str, Any]:
        """Return what an application needs for a decision by people: JSON, with sensitive arguments hidden.

        `expires_at` in seconds since the epoch.
        """
        request = self.found.request
        who = [rule.model_dump(mode="json", include=_SHOWN) for rule in request.rules]
        return {
            "id": self.found.approval_id,
            "tool": request.tool_name,
            "arguments": redacted(request.arguments, request.sensitive),
            "digest": request.binding,
            "approvers": who,
            "missing": missing_votes(request, self.found.votes),
            "expires_at": request.expires_at,
            **({} if self.refusal is None else {"refusal": self.refusal}),
        }

    def result(self) -> ToolResult:
        """The same, for a framework that cannot ask at this moment."""
        result = fleet_results.approval_required(
            self.found.call.tool_name, self.found.call.call_id, expires_at=self.found.request.expires_at
        )
        error = f"{result.error} The last decision was not taken: {self.refusal}"
        return result if self.refusal is None else result.model_copy(update={"error": error})


async def approval_of(
    fleet: ToolFleet, call_id: str, *, kept_for: tuple[str | None, str] | None = None
) -> StoredApproval | None:
    """Return the call's approval; `None` if it needs none. Raises `FleetUnavailable`.

    `kept_for`: the user and the key by which the step that has made the call always finds it.
    """
    async with _answered():
        try:
            found = await fleet.approvals.show(call_id)
        except ApprovalNotTaken:
            return None
        if kept_for is not None and found.request.user_id == kept_for[0]:
            await fleet.approvals.keep_asked(*kept_for, found)
        return found


async def asked_before(fleet: ToolFleet, user_id: str | None, idempotency_key: str) -> str | None:
    """The call that the step has made before, if it was deferred. Raises `FleetUnavailable`."""
    async with _answered():
        return await fleet.approvals.asked(user_id, idempotency_key)


async def denied_before(fleet: ToolFleet, call_id: str, tool_name: str, caller: Caller) -> ToolResult | None:
    """Return the result of the caller's call whose own result is gone, if people have denied it.

    Raises `FleetUnavailable`.
    """
    found = await approval_of(fleet, call_id)
    if found is None or (found.request.user_id, found.request.tool_name) != (caller.user_id, tool_name):
        return None
    if found.state == "rejected":
        return fleet_results.rejected(tool_name, found.journal[-1].reason)
    return fleet_results.approval_expired(tool_name) if found.state == "expired" else None


async def voted(
    fleet: ToolFleet, found: StoredApproval | None, decision: Decision | None, approver: Approver | None
) -> None:
    """Make the decision a vote of the approver's. Returns once people need not decide any more, or need not at all.

    Raises `WaitsForApproval` where they have to, and `FleetUnavailable`: then it may have been taken.
    """
    if found is None or not _waits(found):
        return
    refusal = None
    if decision is not None:
        refusal = decision.fault or await _refused(fleet, found, decision, approver)
        found = await approval_of(fleet, found.approval_id) or found
    if _waits(found):
        raise WaitsForApproval(found, refusal)


@contextlib.asynccontextmanager
async def _answered() -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(_READ_SECONDS):
            yield
    except (OSError, TimeoutError, ResponseError) as exc:
        raise FleetUnavailable("Redis does not answer.") from exc


def _waits(found: StoredApproval) -> bool:
    return found.state == "waiting" and found.place != "done"


async def _refused(
    fleet: ToolFleet, found: StoredApproval, decision: Decision, approver: Approver | None
) -> str | None:
    """Return why the vote is not accepted, or `None`."""
    if decision.call_id not in {None, found.approval_id}:
        return _ANOTHER
    if approver is None:
        return _NOBODY
    call_id, reason, seen = found.approval_id, decision.reason, decision.seen
    try:
        if decision.approves:
            await fleet.approvals.approve(call_id, approver, arguments=decision.arguments, reason=reason, seen=seen)
        else:
            await fleet.approvals.reject(call_id, approver, reason=reason, seen=seen)
    except ApprovalNotTaken as exc:
        return " ".join(filter(None, (str(exc), exc.hint)))
    except ValueError as exc:
        return str(exc)
    return None
