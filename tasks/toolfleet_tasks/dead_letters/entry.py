"""Shows a dead letter of any kind in one form."""

from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

DeadKind = Literal["call", "wakeup", "webhook"]
"""What has died: a call whose end nobody can know, news of a job's end, or an event of the registry that nobody accepted."""

KINDS: Final[tuple[DeadKind, ...]] = get_args(DeadKind)


@dataclass(frozen=True, slots=True)
class DeadEntry:
    """A dead letter. Calls and what they make may share an id: it is one's own among those of its kind."""

    kind: DeadKind
    """What has died."""
    id: str
    """The call's id, or that of the news."""
    died_at: float
    """When it was given up, in seconds since the epoch."""
    attempts: int
    """How many were begun."""
    error: str
    """What the last one came to."""
    subject: str
    """What it was about, in a few words: a tool and a user, a conversation, an event."""
    body: dict[str, Any] | None = field(default=None, kw_only=True)
    """All that is kept of it, without sensitive arguments; `None` if it cannot be read, or is not the fleet's."""
    replayable: bool
    """Whether it can be tried again: what cannot be read, and a wake-up's call with sensitive arguments, can be dropped only."""
