"""Defines what one attempt to run a call can come to: how it ended, and what the caller gets to know."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from toolfleet_registry.contracts.acceptance import Acceptance, StatusMissing, StillAtWork
from toolfleet_registry.contracts.calls import ToolResult

AuditOutcome = Literal["success", "failed", "refused", "unknown"]
"""How a call ended, for its audit: `refused` ones were never sent to their module, and `unknown` is whether one has happened."""


class Outcome(StrEnum):
    """How one attempt ended, seen from the side that must decide about a second one."""

    SUCCESS = "success"
    """The module answered, and says that it worked."""
    NOT_SENT = "not_sent"
    """The module cannot have seen the request: refused, no such host, connect timeout."""
    TURNED_AWAY = "turned_away"
    """The module saw the request and declined to start: 408, 425, 429, and 503 with `Retry-After`."""
    PERMANENT = "permanent"
    """The call can never work as it is: unknown tool, denied, invalid arguments, other 4xx."""
    FAILED = "failed"
    """The module says of the call that it failed (`success: false`); it may have done part of the work."""
    SERVER_ERROR = "server_error"
    """The module failed: any 5xx that is neither `TURNED_AWAY` nor a gateway's 502 or 504."""
    UNKNOWN = "unknown"
    """The request was sent and no readable answer came: nobody here can know what happened."""


class Health(StrEnum):
    """What a worker finds that connects to a module to see whether it is there."""

    WELL = "well"
    """It answers, whatever it says."""
    NOT_READY = "not_ready"
    """It answers, or a gateway in front of it, that it cannot serve now: 502, 503, 504."""
    AWAY = "away"
    """There is no connection, or no answer."""
    UNKNOWN = "unknown"
    """The worker itself cannot make connections now: it has no descriptors, ports, route or name service."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt's end. `retry_after_seconds` is the module's own wish, if it stated one.

    `says_retryable`: whether the module says of a failure that a repeat may help and does no harm.
    `unreached`: where no connection could be made, whether the module may be the reason (`AWAY`) or not (`UNKNOWN`).
    `acceptance`: the module goes on with the call by itself; for whoever cannot follow it there, its outcome is unknown.
    """

    outcome: Outcome
    result: ToolResult
    retry_after_seconds: float | None = None
    unreached: Health | None = None
    says_retryable: bool = False
    acceptance: Acceptance | None = None


Standing: TypeAlias = Attempt | StillAtWork | StatusMissing
"""Where an accepted call is: how it ended (as `outcome_unknown` if its module does not know it), at work, or nobody has said so."""
