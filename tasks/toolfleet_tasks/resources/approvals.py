"""Lists and shows the calls that people have to approve, and takes what they decide.

A call's own rules say who may decide about it, and no role does: all users are shown what they may decide about and what they have asked
for, and viewers are shown everything.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from toolfleet_registry.access import has_role
from toolfleet_registry.errors import ApprovalNotTaken, InvalidArguments
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.records import ListedApproval, StoredApproval
from toolfleet_tasks.approvals.views import ShownApproval, may_see, shown
from toolfleet_tasks.resources.operation import (
    AnswerModel,
    BodyModel,
    FleetOperator,
    OperationRequest,
    QueryModel,
    absent,
    operation,
)

if TYPE_CHECKING:
    from toolfleet_tasks.client.namespaces import FleetApprovals

_ALL, _ONE = "/approvals", "/approvals/{approval_id}"
_LONGEST_REASON = 2_000


class ApprovalQuery(QueryModel):
    """A query for approvals."""

    settled: bool = Field(False, description="Those that wait no more, the last first.")
    conversation_id: str | None = Field(
        None, max_length=256, description="Only those that were asked in this conversation."
    )
    limit: int = Field(50, ge=1, le=1_000, description="How many at most.")
    offset: int = Field(0, ge=0, le=1_000_000, description="How many of the first are left out.")


class ApprovalDecision(BodyModel):
    """A decision about a call."""

    decision: Literal["approve", "reject"]
    """Whether it may begin."""
    reason: Annotated[str, Field(max_length=_LONGEST_REASON)] = ""
    """Why; of a rejected call its agent is told."""
    arguments: dict[str, Any] | None = None
    """With an approval: what stands in the place of the arguments of these names. What others have approved before counts no more."""

    seen: Annotated[str, Field(max_length=128)] | None = None
    """The `binding` that was shown: if the call was edited since, nothing is decided. To be sent where more than one has to approve, and once
    the call was edited."""

    @model_validator(mode="after")
    def _check(self) -> "ApprovalDecision":
        if self.arguments is not None and self.decision == "reject":
            raise ValueError("arguments go with an approval only")
        return self


class ApprovalList(AnswerModel):
    """Calls that people have to approve, or had to."""

    approvals: list[ShownApproval]
    """Those that expire next first; of the settled ones the last first."""
    count: int
    """How many these are."""


@operation("GET", _ALL, role="none", answers="Those that expire next first.")
async def list_approvals(asked: OperationRequest[None, ApprovalQuery]) -> ApprovalList:
    """List the calls that wait for people: those that the key's holder may decide about, and their own."""
    query, viewer = asked.query, asked.operator.approver
    found = await (await asked.fleet()).approvals.list(
        settled=query.settled,
        limit=query.limit,
        offset=query.offset,
        viewer=None if _sees_all(asked.operator) else viewer,
        conversation_id=query.conversation_id,
    )
    return ApprovalList(approvals=[shown(each, viewer) for each in found], count=len(found))


@operation("GET", _ONE, role="none", answers="It.", problems=(404,))
async def get_approval(asked: OperationRequest[None, None]) -> ShownApproval:
    """Return one of these calls."""
    return shown(await _seen(asked), asked.operator.approver)


@operation("POST", _ONE, role="none", answers="What it has come to.", problems=(403, 404, 409, 422))
async def decide_approval(asked: OperationRequest[ApprovalDecision, None]) -> ShownApproval:
    """Approve a call, perhaps with other arguments, or reject it."""
    approver, approval_id = asked.operator.approver, (await _seen(asked)).approval_id
    return shown(await take_decision((await asked.fleet()).approvals, approval_id, approver, asked.body), approver)


def is_shown_to(operator: FleetOperator, found: ListedApproval) -> bool:
    """Return whether the user may see an approval."""
    return _sees_all(operator) or may_see(found, operator.approver)


async def take_decision(
    approvals: "FleetApprovals", approval_id: str, approver: Approver, said: ApprovalDecision
) -> StoredApproval:
    """Take a decision about a call. Raises `OperationRefused` if it is not accepted."""
    try:
        if said.decision == "reject":
            return await approvals.reject(approval_id, approver, reason=said.reason, seen=said.seen)
        return await approvals.approve(
            approval_id, approver, arguments=said.arguments, reason=said.reason, seen=said.seen
        )
    except ValueError as exc:
        raise InvalidArguments(str(exc)) from exc


def _sees_all(operator: FleetOperator) -> bool:
    return has_role(operator.maker.role, "viewer")


async def _seen(asked: OperationRequest[Any, None]) -> StoredApproval:
    """Return an approval. Raises `NoSuchEntry` also for one that the user may not see."""
    with suppress(ApprovalNotTaken):
        found = await (await asked.fleet()).approvals.show(asked.path["approval_id"])
        if is_shown_to(asked.operator, found):
            return found
    raise absent("approval")
