"""Asks in a form of the protocol whether a call may begin, and reads what a person has answered."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from toolfleet_registry.contracts.inputs import InputRequest
from toolfleet_tasks.approvals.shown import ShownApproval

APPROVAL: Final = "approval"
"""The key under which a client is asked for its decision."""

_LONGEST_SHOWN = 8_000  # characters of arguments: people must see what they approve
_LONGEST_REASON = 2_000
_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Decision",
            "description": "Whether the call may begin.",
            "enum": ["approve", "reject"],
        },
        "reason": {
            "type": "string",
            "title": "Reason",
            "description": "Why. Of a rejected call its agent is told.",
            "maxLength": _LONGEST_REASON,
        },
    },
    "required": ["decision"],
}


@dataclass(frozen=True, slots=True)
class FormVote:
    """A person's vote: `dismissed` decides nothing."""

    decision: Literal["approve", "reject", "dismissed"]
    reason: str = ""


def form_of(approval: ShownApproval, sentence: str) -> InputRequest | None:
    """Return the question; `None` for arguments that are too long to be seen in a form."""
    arguments = json.dumps(approval.arguments, ensure_ascii=False, indent=2)
    if len(arguments) > _LONGEST_SHOWN:
        return None
    message = f"May {approval.tool} be called with these arguments?\n{_visible(arguments)}\n{sentence}"
    return InputRequest(
        method="elicitation/create",
        params={"mode": "form", "message": message, "requestedSchema": dict(_SCHEMA)},
    )


def vote_in(answer: Any) -> FormVote:
    """Parse an answer. Declining rejects; dismissing the question leaves it to others. Raises `ValueError`."""
    if not isinstance(answer, Mapping):
        raise ValueError("an answer is an object")  # noqa: TRY004 - of a value
    match answer.get("action"):
        case "cancel":
            return FormVote("dismissed")
        case "decline":
            return FormVote("reject")
        case "accept":
            pass
        case _:
            raise ValueError("action must be accept, decline or cancel")
    content = answer.get("content")
    if not isinstance(content, Mapping) or not content.keys() <= {"decision", "reason"}:
        raise ValueError("content has a decision, and perhaps a reason")
    decision, reason = content.get("decision"), content.get("reason") or ""
    if decision not in {"approve", "reject"}:
        raise ValueError("decision must be approve or reject")
    if not isinstance(reason, str) or len(reason) > _LONGEST_REASON:
        raise ValueError(f"reason must be a text of at most {_LONGEST_REASON} characters")
    return FormVote("approve" if decision == "approve" else "reject", reason)


def _visible(text: str) -> str:
    """Characters that change how others are shown stand as their codes."""
    return "".join(each if each.isprintable() or each == "\n" else f"\\u{ord(each):04x}" for each in text)
