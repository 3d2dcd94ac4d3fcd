"""Describes the requests and answers about approvals."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from toolfleet_tasks.approvals.shown import ShownApproval

_LONGEST_REASON = 2_000


class ApprovalQuery(BaseModel):
    """A query for approvals."""

    model_config = ConfigDict(extra="forbid")

    settled: bool = Field(False, description="Those that wait no more, the last first.")
    conversation_id: str | None = Field(
        None, max_length=256, description="Only those that were asked in this conversation."
    )
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

    seen: Annotated[str, Field(max_length=128)] | None = None
    """The `binding` that was shown: if the call was edited since, nothing is decided. To be sent where more than one has to approve, and once
    the call was edited."""

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


class ApprovalNotice(BaseModel):
    """Something that has happened to an approval."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    approval: ShownApproval
    """The approval, as it is at this moment."""
