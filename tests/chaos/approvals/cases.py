"""Makes the cases of a run, calls that people have to approve, and keeps how each has ended."""

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from chaos.plan import MODULES
from toolfleet import Caller, CallHandle, ToolCall, ToolResult

Kind = Literal["approved", "raced", "rejected", "edited", "contested", "expired", "cancelled", "forged"]
KINDS: Mapping[Kind, int] = {
    "approved": 40,
    "raced": 15,
    "rejected": 10,
    "edited": 10,
    "contested": 10,
    "expired": 5,
    "cancelled": 5,
    "forged": 5,
}
"""How often each happens, of a hundred: two approve at once; one approves and one rejects at once; the agent takes it back as one approves."""

AGENTS: Mapping[str, Any] = {
    "one": {"middleware": [{"name": "human_in_the_loop", "approve_tools": ["*.once"], "expires_seconds": 600}]},
    "hasty": {"middleware": [{"name": "human_in_the_loop", "approve_tools": ["*.once"], "expires_seconds": 2}]},
}
GIVE_UP_SECONDS = 120.0
_BEHAVIOURS = {"ok": 80, "fails": 6, "fails_clean": 3, "error": 4, "hangs_up": 5, "busy": 2}


@dataclass
class Case:
    """One call that people have to approve. `state`: what their decisions have come to. `told`: what its agent was told last."""

    ref: str
    kind: Kind
    tool: str
    arguments: dict[str, Any]
    approval_id: str = ""
    handle: CallHandle | None = None
    state: str | None = None
    told: ToolResult | None = None
    trouble: list[str] = field(default_factory=list)

    @property
    def edited(self) -> str:
        """The `ref` of what it becomes, if anybody edits it."""
        return f"{self.ref}-edited"

    @property
    def caller(self) -> Caller:
        agent = "hasty" if self.kind == "expired" else "one"
        return Caller(user_id="ada", permission="user", allowed_modules="*", agent=agent)

    @property
    def call(self) -> ToolCall:
        return ToolCall(tool_name=self.tool, arguments=self.arguments, idempotency_key=f"key of {self.ref}")


def make_cases(count: int, dice: random.Random) -> list[Case]:
    """So many, of all kinds."""
    made = list[Case]()
    for number in range(count):
        (first,) = dice.choices(list(_BEHAVIOURS), list(_BEHAVIOURS.values()))
        (kind,) = dice.choices(list(KINDS), list(KINDS.values()))
        ref = f"case-{number}-{dice.getrandbits(32):08x}"
        waits = {name: dice.choice((0, 0, 20, 200)) for name in ("before_ms", "after_ms")}
        arguments = {"ref": ref, "first": first, "then": "ok", **waits}
        made.append(Case(ref, kind, f"{dice.choice(MODULES)}.once", arguments))
    return made


def write_end(case: Case, file: IO[str]) -> None:
    """Note how a case has ended, one line a case."""
    told = None if case.told is None else case.told.model_dump(mode="json")
    line = {"ref": case.ref, "state": case.state, "told": told, "trouble": case.trouble}
    file.write(f"{json.dumps(line)}\n")
    file.flush()


def read_ends(cases: Iterable[Case], paths: Iterable[Path]) -> None:
    """Give each case the end that was noted of it."""
    by_ref = {case.ref: case for case in cases}
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            end = json.loads(line)
            case = by_ref[end["ref"]]
            case.state, case.trouble = end["state"], end["trouble"]
            case.told = None if end["told"] is None else ToolResult.model_validate(end["told"])
