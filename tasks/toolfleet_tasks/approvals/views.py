"""Shows approvals to people who may decide about them and to those who asked, with sensitive values hidden from others."""

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from toolfleet_registry.permissions import Permission, level_of_caller
from toolfleet_registry.policy.redaction import redacted
from toolfleet_tasks.approvals.approvers import Approver, has_asked, may_decide, missing_votes
from toolfleet_tasks.approvals.records import ListedApproval

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # Unicode's categories
_UNUSUAL = re.compile(r"[^\n\t -~]")


class ShownStep(BaseModel):
    """One thing that happened to an approval."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    at: float
    """When, in seconds since the epoch."""
    what: Literal["approved", "rejected", "edited", "expired"]
    """What."""
    by: str
    """Who: `user <id>`, `key <id>`, `token <subject>`, `command line` or `fleet`."""
    reason: str = ""
    """Why, in their words; of an edit, which arguments were replaced."""


class ShownApproval(BaseModel):
    """A call that people have to approve, as one of them sees it. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    id: str
    """Its id, which is that of the call."""
    state: Literal["waiting", "approved", "rejected", "expired", "withdrawn"]
    """Where it is; `withdrawn`: its call was taken back while people decided."""
    tool: str
    """The tool that is called."""
    arguments: dict[str, Any]
    """With what; sensitive values stand as `[redacted]` for all but owners, and whoever has asked."""
    arguments_left_out: bool = False
    """Whether they are missing here, as they have more than 16 KiB: `GET /approvals/{id}` has them until the approval is settled."""
    effect: str | None = None
    """What repeating the call would do, as the tool says it."""
    user_id: str | None = None
    """In whose name."""
    agent: str | None = None
    """The agent that asks."""
    conversation_id: str | None = None
    """The conversation that it asks in."""
    requested_at: float
    """When it has asked."""
    expires_at: float
    """When the call is denied if people have not decided."""
    binding: str
    """The digest of all that is approved, as it is now. Who sends it with a decision decides about nothing else."""
    missing: int
    """How many more have to approve, at least."""
    may_decide: bool
    """Whether whoever looks may decide about it."""
    journal: list[ShownStep]
    """What has happened to it."""


def shown(found: ListedApproval, viewer: Approver) -> ShownApproval:
    """Return the approval as `viewer` sees it."""
    request, is_open = found.request, found.state == "waiting"
    sees_all = has_asked(request, viewer) or level_of_caller(viewer.permission) >= Permission.OWNER
    return ShownApproval(
        id=found.approval_id,
        state="withdrawn" if found.is_withdrawn else found.state,
        tool=request.tool_name,
        arguments=request.arguments if sees_all else redacted(request.arguments, request.sensitive),
        arguments_left_out=found.arguments_left_out,
        effect=found.effect,
        user_id=request.user_id,
        agent=request.caller.agent,
        conversation_id=request.conversation_id,
        requested_at=request.requested_at,
        expires_at=request.expires_at,
        binding=request.binding,
        missing=missing_votes(request, found.votes) if is_open else 0,
        may_decide=is_open and found.place != "done" and may_decide(request, viewer),
        journal=[ShownStep(at=line.at, what=line.what, by=line.by, reason=line.reason) for line in found.journal],
    )


def readable(arguments: Mapping[str, Any]) -> str:
    """Return arguments, whole, for a person who decides about them: texts of several lines as they are, each line after a bar.

    Characters that nobody sees, or that turn the direction of a line, are escaped: what is read is what is run.
    """
    texts = {name: value for name, value in arguments.items() if isinstance(value, str) and "\n" in value}
    others = {name: value for name, value in arguments.items() if name not in texts}
    parts = [json.dumps(others, indent=2, ensure_ascii=False, default=str)] if others or not texts else []
    for name, text in texts.items():
        lines = text.split("\n")
        parts.append("\n".join([f"{json.dumps(name, ensure_ascii=False)}:", *(f"  | {line}" for line in lines)]))
    return _UNUSUAL.sub(_seen, "\n\n".join(parts))


def _seen(match: re.Match[str]) -> str:
    character = match[0]
    if unicodedata.category(character) not in _UNSEEN:
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 2**16 else f"\\U{ord(character):08x}"


def may_see(found: ListedApproval, viewer: Approver) -> bool:
    """Return whether the viewer may see the approval: as one who may decide about it, or who has asked for it."""
    return has_asked(found.request, viewer) or may_decide(found.request, viewer)
