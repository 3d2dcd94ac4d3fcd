"""What one attempt to run a call can come to: how it ended, and what the caller is told."""

from dataclasses import dataclass
from enum import StrEnum

from toolfleet_registry.contracts import ToolResult


class Outcome(StrEnum):
    """How one attempt ended, seen from the side that must decide about a second one."""

    SUCCESS = "success"
    """The module answered, and says that it worked."""
    NOT_SENT = "not_sent"
    """The module cannot have seen the request: refused, no such host, connect timeout."""
    TURNED_AWAY = "turned_away"
    """The module saw the request and declined to start: 408, 425, 429, 503."""
    PERMANENT = "permanent"
    """The call can never work as it is: unknown tool, denied, invalid arguments, other 4xx."""
    FAILED = "failed"
    """The module says that it failed; it may have done part of the work."""
    UNKNOWN = "unknown"
    """The request was sent and no readable answer came: nobody here can know what happened."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt's end. `retry_after_seconds` is the module's own wish, if it stated one."""

    outcome: Outcome
    result: ToolResult
    retry_after_seconds: float | None = None
