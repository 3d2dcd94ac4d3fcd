"""Lists, shows and decides approvals: each holder of a key sees those that are theirs to decide, and their own calls'; viewers see all."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from toolfleet_gateway.approvals.deciding import approver_of, is_theirs
from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.answers import json_answer
from toolfleet_gateway.http.problems import Problem, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_registry.errors import ApprovalNotTaken
from toolfleet_tasks.approvals.records import StoredApproval
from toolfleet_tasks.approvals.shown import ShownApproval, shown
from toolfleet_tasks.client.fleet import ToolFleet

_LIST, _ONE = "/approvals", "/approvals/{approval_id}"
_LONGEST_REASON = 2_000
_READ_AT_ONCE = 1_000  # of all that wait, for the page of one who may not see each


class ApprovalQuery(BaseModel):
    """Which approvals."""

    model_config = ConfigDict(extra="forbid")

    settled: bool = Field(False, description="Those that wait no more, the last first.")
    limit: int = Field(50, ge=1, le=1_000, description="How many at most.")
    offset: int = Field(0, ge=0, le=1_000_000, description="How many of the first are left out.")


class ApprovalDecision(BaseModel):
    """What somebody decides about a call."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    decision: Literal["approve", "reject"]
    """Whether it may begin."""
    reason: Annotated[str, Field(max_length=_LONGEST_REASON)] = ""
    """Why; of a rejected call its agent is told."""
    arguments: dict[str, Any] | None = None
    """With an approval: what stands in the place of the arguments of these names. What others have approved before counts no more."""

    @model_validator(mode="after")
    def _check(self) -> "ApprovalDecision":
        if self.arguments is not None and self.decision == "reject":
            raise ValueError("arguments go with an approval only")
        return self


class ApprovalList(BaseModel):
    """Calls that people have to approve, or had to."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    approvals: list[ShownApproval]
    """Those that expire next first; of the settled ones the last first."""
    count: int
    """How many these are."""


def approval_routes(fleet: ToolFleet) -> list[AnyRoute]:
    """What is answered about approvals. Who may decide, each call's rules say, and no role."""
    about = _AboutApprovals(fleet)
    return [
        Route(
            method="GET",
            path=_LIST,
            name="listApprovals",
            summary="Calls that wait for people: those that the key's holder may decide, and their own",
            handle=about.listed,
            query=ApprovalQuery,
            answers={200: Answer("Those that expire next first.", ApprovalList)},
            tag="approvals",
        ),
        Route(
            method="GET",
            path=_ONE,
            name="getApproval",
            summary="One of them",
            handle=about.shown,
            answers={200: Answer("It.", ShownApproval)},
            problems=(404,),
            tag="approvals",
        ),
        Route(
            method="POST",
            path=_ONE,
            name="decideApproval",
            summary="Approve a call, perhaps with other arguments, or reject it",
            handle=about.decided,
            body=ApprovalDecision,
            answers={200: Answer("What it has come to.", ShownApproval)},
            problems=(403, 404, 409, 422),
            tag="approvals",
        ),
    ]


class _AboutApprovals:
    def __init__(self, fleet: ToolFleet) -> None:
        self._approvals = fleet.approvals

    async def listed(self, request: RouteRequest[None, ApprovalQuery]) -> Response:
        viewer, query = approver_of(request.who), request.query
        found = await self._approvals.list(settled=query.settled, limit=_READ_AT_ONCE)
        seen = [each for each in found if is_theirs(each, request.who)][query.offset : query.offset + query.limit]
        return json_answer(ApprovalList(approvals=[shown(each, viewer) for each in seen], count=len(seen)))

    async def shown(self, request: RouteRequest[None, None]) -> Response:
        found = await self._seen(request.path["approval_id"], request.who)
        return json_answer(shown(found, approver_of(request.who)))

    async def decided(self, request: RouteRequest[ApprovalDecision, None]) -> Response:
        approver, decision = approver_of(request.who), request.body
        approval_id = (await self._seen(request.path["approval_id"], request.who)).approval_id
        try:
            if decision.decision == "reject":
                found = await self._approvals.reject(approval_id, approver, reason=decision.reason)
            else:
                said = decision.arguments
                found = await self._approvals.approve(approval_id, approver, arguments=said, reason=decision.reason)
        except ApprovalNotTaken as exc:
            status, kind = (403, "approval_forbidden") if exc.reason == "forbidden" else (409, "approval_not_taken")
            raise Problem(status, kind, str(exc)) from exc
        except ValueError as exc:
            raise Problem(422, "invalid_arguments", str(exc)) from exc
        return json_answer(shown(found, approver))

    async def _seen(self, approval_id: str, who: Identity) -> StoredApproval:
        """Raises `Problem`, 404, also for one that is not theirs to see."""
        try:
            found = await self._approvals.show(approval_id)
        except ApprovalNotTaken as exc:
            raise _absent() from exc
        if not is_theirs(found, who):
            raise _absent()
        return found


def _absent() -> Problem:
    return not_found("There is no such approval, or not any more.")
