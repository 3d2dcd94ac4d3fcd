"""Describes how often a call may be tried again, and after which pauses."""

from typing import Annotated

from pydantic import Field

from toolfleet_registry.contracts.message import Message, Since

MOST_RETRIES = 10
"""Further attempts of one call: who needs more has a module that is away."""

LONGEST_PAUSE_SECONDS = 30.0
"""Before one of them: as long as a module's `Retry-After` is honoured."""

Pause = Annotated[float, Field(ge=0, le=LONGEST_PAUSE_SECONDS, allow_inf_nan=False)]


class RetryTerms(Message):
    """At most so many attempts after the first, as far as the call's effect and its deadline let there be any."""

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
