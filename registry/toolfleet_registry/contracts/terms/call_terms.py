"""Describes the limits that a call travels with, of its tool and of its agent's profile."""

from typing import Annotated, Literal

from pydantic import Field

from toolfleet_registry.contracts.message import Message, Since

MOST_CALLS = 2**53
"""What Redis's Lua can count."""

MOST_TOTALS = 2_000
"""Of one call: each is a key in Redis that is looked at. The profiles of one agent name fewer."""

ExitBehavior = Literal["continue", "end", "error"]
"""What an agent is to do at its limit: go on without the tool, answer with what it has, or treat it as an error."""


class CallTotal(Message):
    """How many calls a run or a thread may make in all, of the tools that one entry of a profile selects."""

    kind: Literal["run", "thread"]
    """A run is one turn of an agent, a thread is one conversation."""
    name: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Whose profile's entry it is, and for which tools, as a digest: calls with the same one count together."""
    most: int = Field(ge=0, le=MOST_CALLS)
    """So many calls."""
    exit_behavior: ExitBehavior = "continue"
    """What the refusal tells the model to do."""


class Terms(Message):
    """What is asked of whoever calls a tool, as in its `ToolDefinition`; what is `None` is not limited."""

    cooldown_seconds: float | None = None
    daily_limit: int | None = None
    cost: str | None = None
    requires_gate: bool = False
    totals: Annotated[tuple[CallTotal, ...], Since(3), Field(max_length=MOST_TOTALS)] = ()
