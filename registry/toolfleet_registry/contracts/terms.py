"""Describes under which terms a call travels: how often it may be made, and how often tried."""

from typing import Annotated, Literal

from pydantic import Field

from toolfleet_registry.contracts.message import Message, Since

MOST_CALLS = 2**53
"""What Redis's Lua can count."""

MOST_TOTALS = 2_000
"""Of one call: each is a key in Redis that is looked at. The profiles of one agent name fewer."""

ExitBehavior = Literal["continue", "end", "error"]
"""What an agent is to do at its limit: go on without the tool, answer with what it has, or treat it as an error."""

MOST_RETRIES = 10
"""Further attempts of one call: who needs more has a module that is away."""

LONGEST_PAUSE_SECONDS = 30.0
"""Before one of them: as long as a module's `Retry-After` is honoured."""

Pause = Annotated[float, Field(ge=0, le=LONGEST_PAUSE_SECONDS, allow_inf_nan=False)]


class CallTotal(Message):
    """The total number of calls that a run or a thread may make, of the tools that one entry of a profile selects."""

    kind: Literal["run", "thread"]
    """A run is one turn of an agent, a thread is one conversation."""
    name: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Whose profile's entry it is, and for which tools, as a digest: calls with the same one count together."""
    most: int = Field(ge=0, le=MOST_CALLS)
    """So many calls."""
    exit_behavior: ExitBehavior = "continue"
    """What the refusal tells the model to do."""


class Terms(Message):
    """The limits and conditions for callers of a tool, as in its `ToolDefinition`; `None` means no limit."""

    cooldown_seconds: float | None = None
    daily_limit: int | None = None
    cost: str | None = None
    requires_gate: bool = False
    totals: Annotated[tuple[CallTotal, ...], Since(3), Field(max_length=MOST_TOTALS)] = ()


class RetryTerms(Message):
    """The number of retries after the first attempt, as far as the call's effect and its deadline allow."""

    max_retries: int = Field(default=1, ge=0, le=MOST_RETRIES)
    """More than one only where a repeat does no harm."""
    backoff_factor: float = Field(default=2.0, ge=1, le=10, allow_inf_nan=False)
    """What each pause is longer than the one before."""
    initial_delay_seconds: Pause = 0.1
    """The first pause."""
    max_delay_seconds: Pause = LONGEST_PAUSE_SECONDS
    """The longest one."""
    jitter: bool = True
    """Whether up to as much again is added to a pause, by chance."""
    undeclared: Annotated[bool, Since(4)] = False
    """Whether a tool without an effect is tried again, up to `max_retries` times, when it has answered that it failed."""
    retry_on: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=64)] | None = None
    """Only after failures with one of these error codes, sorted; `None`: after all that may be repeated."""
