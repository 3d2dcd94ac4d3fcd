"""Declares the limits of a tool's users as decorators, profiles and calls have them; `ToolDefinition` and `ToolDef` have the same fields.

All that only passes limits on reads their names in `LIMITS`.
"""

from typing import Annotated, Final, Literal, TypedDict, cast

from pydantic import BaseModel, ConfigDict, Field

from toolfleet_registry.contracts.message import DEFERS_BUILD, Message, Seconds, Since
from toolfleet_registry.contracts.tool_definition import CostClass

MOST_CALLS = 2**53
"""The largest number that Lua in Redis counts exactly."""

MOST_TOTALS = 2_000
"""The most totals of one call: each is a key in Redis that is read. The profiles of one agent name fewer."""

ExitBehavior = Literal["continue", "end", "error"]
"""The action of an agent at its limit: go on without the tool, answer with what it has, or treat it as an error."""


class LimitFacts(TypedDict, total=False):
    """The limits that a function's decorator may set; `None` is none."""

    daily_limit: int | None
    cooldown_seconds: float | None
    cost: CostClass | None


LIMITS: Final = tuple(LimitFacts.__annotations__)
"""The names of all limits."""


class ProfileLimits(BaseModel):
    """The entry of an agent's profile that adds limits."""

    model_config = ConfigDict(defer_build=DEFERS_BUILD)

    name: Literal["limits"]
    """Which one it is."""
    daily_limit: Annotated[int, Field(gt=0, le=MOST_CALLS)] | None = None
    """Calls a UTC day."""
    cooldown_seconds: Seconds | None = None
    """Seconds between two calls."""
    cost: CostClass | None = None
    """The class whose budget they use (`cost_budgets`), if the tool's own is cheaper."""


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


def limits_in(source: object) -> LimitFacts:
    """Return the limits that a definition, a tag's tool, a profile's entry or terms set, by name: none that is 0 or empty."""
    return cast("LimitFacts", {name: value for name in LIMITS if (value := getattr(source, name))})
