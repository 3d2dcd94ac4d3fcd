"""How calls ended for their agents: a line a call, in a file that outlives the agent."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from chaos.plan import effect_of
from toolfleet_registry.contracts import ToolResult

Way = Literal[
    "called", "submitted", "cancelled", "given_up", "many", "keyed", "conflicting", "paired", "burst", "hostile"
]
"""How an agent made the call. `given_up`: the awaiting task was cancelled, so that it got no result. `paired`: a second write
followed the first one's success."""

FIRST, SECOND = "/1", "/2"
"""End the `ref` of paired writes, in their order."""


class Ending(BaseModel):
    """One call. `ref` is its intention: calls with one idempotency key share it. `error`: what it raised, or that it hung."""

    model_config = ConfigDict(frozen=True)

    ref: str
    tool: str
    way: Way
    timeout: float
    began_at: float
    seconds: float
    key: str | None = None
    result: ToolResult | None = None
    error: str | None = None

    @property
    def effect(self) -> str:
        """What the tool declares, or `undeclared`."""
        return effect_of(self.tool)

    @property
    def call_id(self) -> str | None:
        """Of the call that the result is of: a repeat's may be an earlier one's."""
        return self.result.audit.call_id or None if self.result else None


def read_endings(path: Path) -> list[Ending]:
    """All endings that an agent wrote down."""
    if not path.exists():
        return []
    return [Ending.model_validate_json(line) for line in path.read_text().splitlines()]
