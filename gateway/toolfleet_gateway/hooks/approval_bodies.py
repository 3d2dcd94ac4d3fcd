"""Describes what an outside system decides about a call, and what it is answered."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from toolfleet_gateway.approvals.bodies import ApprovalDecision


class SignedDecision(ApprovalDecision):
    """What an outside system decides about a call."""

    approval_id: Annotated[str, Field(max_length=200)]
    """The approval, as in the path: of a signed request only the body is signed."""


class DecisionTaken(BaseModel):
    """What a request has come to; the same for each repeat of it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    approval_id: str
    """Which approval."""
    taken: Literal["approved", "rejected"]
    """What was noted: others may have to approve, too. `rejected` as well where the call is not any more what it was."""
