"""Defines an attempt to run a call: until when it may begin, and what it can come to.

In a block a file's label replaces its bytes, as everywhere in results. A resource's own `_meta` is its `resourceMeta`;
its other members are next to its `uri`.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias

from toolfleet_registry.contracts.calls import EffectState, ToolResult
from toolfleet_registry.contracts.inputs import InputRequest
from toolfleet_registry.system import fleet_clock

LONGEST_HANDLE = 512  # characters
LONGEST_POLL_SECONDS = 86_400.0  # more is no coming back

AuditOutcome = Literal["success", "failed", "refused", "unknown"]
"""How a call ended, for its audit: `refused` ones were never sent to their module, and `unknown` is whether one has happened."""

UNEXPLAINED = "log says why."
"""The end of an error that hides an exception's text: the text is only in a log, so it does not help a model to correct the call."""

# A day: a module that asks for more does not expect this call again, and no number of theirs may overflow ours.
LONGEST_SECONDS = 86_400.0

ALLOWANCE_SECONDS = 1.0
"""How late a request may be at its module: clocks are read, and bytes travel. A lease ends so much after the last moment to begin."""

_FIELDS = frozenset({"content", "structured", "_meta"})
_KINDS = frozenset({"text", "image", "audio", "resource", "resource_link"})
_OWN = ("toolfleet/", "io.toolfleet/", "io.modelcontextprotocol/")  # what the fleet says by itself to its clients


class Outcome(StrEnum):
    """The outcome of one attempt, from the view of a decision about a retry."""

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
    """The request was sent and no readable answer came: it is unknown what happened."""


class Health(StrEnum):
    """The result of a worker's check whether a module can be reached."""

    WELL = "well"
    """It answers, whatever it says."""
    NOT_READY = "not_ready"
    """It answers, or a gateway in front of it, that it cannot serve now: 502, 503, 504."""
    AWAY = "away"
    """There is no connection, or no answer."""
    UNKNOWN = "unknown"
    """The worker itself cannot make connections now: it has no descriptors, ports, route or name service."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A module has started a call, and continues it by itself.

    `poll_after_seconds`: the delay before the first status request; `None` if the module does not say.
    """

    handle: str
    poll_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A module asks something before it goes on with a call; `state` is for itself, and comes back with the answers.

    `effect_state`: what the call has done by now.
    """

    requests: dict[str, InputRequest]
    state: str = ""
    effect_state: EffectState = "unknown"


@dataclass(frozen=True, slots=True)
class StillAtWork:
    """A module says of a call that it has accepted that it is not over. `poll_after_seconds` as `Acceptance` has it."""

    poll_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StatusMissing:
    """A module did not report on a call that it has accepted, and is asked again.

    `is_silent`: it was reached and did not answer in time; `is_unreached`: no connection could be made. Otherwise it
    sent an unusable answer. `is_leaving`: its process is not there; after a while without it `is_gone`, and no other
    process knows of the call.
    """

    is_silent: bool = False
    is_unreached: bool = False
    is_leaving: bool = False
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of one attempt. `retry_after_seconds` is the module's own wish, if it stated one.

    `says_retryable`: whether the module says of a failure that a repeat may help and does no harm. `unreached`: if no
    connection could be made, whether the module may be the reason (`AWAY`) or not (`UNKNOWN`); `why`: the reason, one
    of `policy.hints`. `acceptance`: the module continues the call by itself; for a client that cannot follow
    it there, its outcome is unknown. `question`: the module continues once that is answered; for a client that cannot
    ask, the call has failed. `unchecked`: why the module wants its result not validated against the tool's schema.
    `is_stopped`: the module has answered that it has stopped or lost the call, so that the outcome is unknown, and the
    module is there. `hides_results`: this result is kept nowhere, also if those of its tool are.
    """

    outcome: Outcome
    result: ToolResult
    retry_after_seconds: float | None = None
    unreached: Health | None = None
    why: str = field(default="", kw_only=True)
    says_retryable: bool = False
    acceptance: Acceptance | None = None
    question: Question | None = None
    is_stopped: bool = False
    unchecked: str | None = None
    hides_results: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether the call continues after the attempt: in its module, or once a question is answered."""
        return self.acceptance is not None or self.question is not None


Standing: TypeAlias = Attempt | StillAtWork | StatusMissing
"""Where an accepted call is: how it ended (as `outcome_unknown` if its module does not know it), that it still runs, or that its module did not report."""


def check_acceptance(handle: object, poll_after_seconds: float | None = None) -> None:
    """Raise `ValueError`, with a reason that can be shown, for a handle or a time that is none."""
    if not is_handle(handle):
        raise ValueError(f"a handle has 1 to {LONGEST_HANDLE} printable characters")
    if poll_after_seconds is not None and not is_poll_time(poll_after_seconds):
        raise ValueError(f"poll_after_seconds is 0 to {LONGEST_POLL_SECONDS:.0f}")


def is_handle(value: object) -> bool:
    """Return whether the value is a text of 1 to 512 printable characters."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_HANDLE and value.isprintable()


def is_poll_time(value: object) -> bool:
    """Return whether the value is a valid delay in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and 0 <= value <= LONGEST_POLL_SECONDS


def parse_retry_after(value: str | None, *, now: datetime | None = None) -> float | None:
    """Seconds to wait, 0 to `LONGEST_SECONDS`; `None` for an absent or a senseless value. A past date is 0."""
    if value is None:
        return None
    seconds = _seconds(value.strip(), now or fleet_clock.utc_now())
    return None if seconds is None else min(max(seconds, 0.0), LONGEST_SECONDS)


def _seconds(value: str, now: datetime) -> float | None:
    try:
        seconds = float(value)  # the standard knows whole seconds only; some services send fractions
    except ValueError:
        return _until(value, now)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _until(value: str, now: datetime) -> float | None:
    from email.utils import parsedate_to_datetime  # nearly all modules give seconds

    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    # A date in -0000 comes without a zone; HTTP dates are always in UTC.
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now.timestamp()


def content_blocks(value: object) -> list[dict[str, Any]] | None:
    """Return the blocks of such a result, or None for any other: a tool may have a member `content` of its own."""
    if not isinstance(value, dict) or not value.keys() <= _FIELDS:
        return None
    blocks = value.get("content")
    if not isinstance(blocks, list) or not all(
        isinstance(each, dict) and each.get("type") in _KINDS for each in blocks
    ):
        return None
    return blocks if blocks or len(value) > 1 else None


def checked_part(value: Any) -> Any:
    """Return what a tool's output schema says something of: structured content, or the result."""
    return value["structured"] if content_blocks(value) is not None and "structured" in value else value


def text_in(blocks: Iterable[Mapping[str, Any]]) -> str:
    """Return what a model may read of blocks: texts, the labels of files, and links as JSON."""
    return "\n".join(
        str(each["text"] if "text" in each else each.get("file") or json.dumps(each, ensure_ascii=False))
        for each in blocks
    )


def foreign_meta(meta: object) -> dict[str, Any]:
    """Return a server's `_meta`, without the names that belong to the fleet and the protocol."""
    found = meta if isinstance(meta, dict) else {}
    return {name: value for name, value in found.items() if not name.startswith(_OWN) and value is not None}


class LeaseOver(Exception):
    """The attempt may not begin any more: others may have the call by now. Nothing was sent."""


class Lease(Protocol):
    """The right to begin an attempt, the `attempt`th of its call."""

    @property
    def attempt(self) -> int:
        """Counted from 1: the module's fence against those before it."""
        ...

    def seconds_left(self) -> float:
        """Seconds in which the attempt may begin; 0 or less if it may not. Asked immediately before it does."""
        ...

    @property
    def replica(self) -> str:
        """The replica of its module that has started the call, as its executor noted it; "" for a single address."""
        ...

    @property
    def is_scattered(self) -> bool:
        """Whether an earlier attempt may have been elsewhere than at `replica`: a call unknown there may have happened all the same."""
        ...

    async def move(self, replica: str) -> None:
        """Note that the attempt goes to another process, before anything is sent there. Raises `LeaseOver`, with nothing noted."""
        ...

    def note_request(self, seconds: float, *, ended_at: float) -> None:
        """Note how long the module had the attempt's request, and when (by the machine's clock) that was over."""
        ...


@dataclass(frozen=True, slots=True)
class UnboundedLease:
    """The lease of a call that no other worker can have, or that has ended; see `Lease` for `replica`."""

    replica: str = ""
    attempt: int = 1
    is_scattered: bool = False

    def seconds_left(self) -> float:
        """Return infinity: it has no end."""
        return math.inf

    async def move(self, replica: str) -> None:
        """Do nothing: no other worker asks for the place."""

    def note_request(self, seconds: float, *, ended_at: float) -> None:
        """Do nothing: the duration is not used."""


UNBOUNDED: Lease = UnboundedLease()
"""The lease of a call that no other worker can have: one that was not claimed."""


def require_live(lease: Lease) -> None:
    """Raise `LeaseOver` unless the attempt may begin now. What begins it must follow at once: a pause in between is not seen."""
    if lease.seconds_left() <= 0:
        raise LeaseOver
