"""Reads in a module's reply that it goes on with the call by itself."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from toolfleet_registry.contracts import ModuleMessage, PublishedCall
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.outcomes import LONGEST_HANDLE, Acceptance, Attempt, Outcome, is_poll_time
from toolfleet_workers.runner import unsuccessful


class AcceptedReply(ModuleMessage):
    """What a module says of a call that it goes on with. The handle is for its `/status`, and printable."""

    model_config = ConfigDict(strict=True, defer_build=DEFERS_BUILD)

    tool_name: str
    accepted: Literal[True]
    handle: Annotated[str, Field(min_length=1, max_length=LONGEST_HANDLE)]
    poll_after_seconds: float | None = None

    @field_validator("poll_after_seconds", mode="before")
    @classmethod
    def _believe_a_time(cls, value: Any) -> float | None:
        return float(value) if is_poll_time(value) else None

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> "AcceptedReply":
        if self.tool_name != info.context:
            raise ValueError("it is for another tool")
        if not self.handle.isprintable():
            raise ValueError("'handle' is not printable")
        return self


def is_acceptance(document: object) -> bool:
    """Return whether a reply's JSON says that the call continues, however malformed."""
    return isinstance(document, dict) and document.get("accepted") is True and "success" not in document


def judge_acceptance(call: PublishedCall, document: object) -> Attempt:
    """Return the attempt for such a reply. Raises `ValidationError` if it is invalid."""
    reply = AcceptedReply.model_validate(document, context=call.tool_name)
    return accepted(call, Acceptance(reply.handle, reply.poll_after_seconds))


def accepted(call: PublishedCall, acceptance: Acceptance) -> Attempt:
    """Return an attempt whose module continues the call by itself."""
    text = "Tool execution error: the module goes on with the call, and nobody knows how it ends"
    attempt = unsuccessful(call, Outcome.UNKNOWN, "outcome_unknown", text)
    return Attempt(attempt.outcome, attempt.result, acceptance=acceptance)


__all__ = ["AcceptedReply", "ValidationError", "accepted", "is_acceptance", "judge_acceptance"]
