"""Collects what was decided about a call at each point that it passes, for its audit line.

Code that decides calls `note("gate", "allowed")` in the call's own task, and knows no other code. Without a collector,
a note is dropped.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, Literal, TypeAlias

from toolfleet_registry.contracts.call_context import Conversation

Point = Literal["published", "limits", "gate", "approval", "agent", "permission", "personal_data", "result_check"]
"""Where something may stop a call: its agent, the limits, the agent's gate, a person, the agent's profile, its worker, personal data, and the look at
its result."""

Decisions: TypeAlias = dict[str, str]
"""By point, a word or two of ours (`allowed`, `denied`, `failed_open`), and never anything from a call's arguments."""

CONVERSATION: Final = "conversation_id"
"""Under this name a call's conversation travels among its decisions, which each version reads; its audit line has it as a field."""

USER: Final = "user_id"
"""Under this name the user travels likewise, as audit and logs may show them, where the call itself names them otherwise."""

_LONGEST_ID = 256  # characters

_collected: ContextVar[Decisions | None] = ContextVar("toolfleet_decisions", default=None)


def collecting(before: Decisions | None = None) -> Decisions:
    """Start collecting for one call, in its own task and its subtasks; `before` has the decisions made elsewhere."""
    decisions = dict(before) if before else {}
    _collected.set(decisions)
    return decisions


def facts_of(conversation: Conversation | None) -> Decisions:
    """Return the facts of a call before any decision: its conversation, if its agent names one."""
    if conversation is None or not conversation.conversation_id:
        return {}
    return {CONVERSATION: conversation.conversation_id[:_LONGEST_ID]}


def note_ids(ids: Mapping[str, str]) -> None:
    """Note how audit and logs name the user and the conversation of the running call."""
    if (decisions := _collected.get()) is not None:
        decisions.update(ids)


def shown_user(user_id: str | None) -> str | None:
    """Return the user of the running call as logs may show them."""
    return (_collected.get() or {}).get(USER, user_id)


def note(point: Point, decision: str) -> None:
    """Note what was decided at a point of the running call; a later word at the same point holds."""
    decisions = _collected.get()
    if decisions is not None:
        decisions[point] = decision
