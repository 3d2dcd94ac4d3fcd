"""Defines what a framework keeps of a call that goes on without its run: enough to find its end, and never to begin it again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["call", "job", "approval"]

CALL: Final = "toolfleet_call_id"
TOOL: Final = "toolfleet_tool"
RUN: Final = "toolfleet_run_id"
APPROVAL: Final = "toolfleet_approval"
_KIND: Final = "kind"
_KINDS: Final[Mapping[object, Kind]] = {"call": "call", "job": "job", "approval": "approval"}


@dataclass(frozen=True, slots=True)
class DeferredStep:
    """A step whose call continues as `call_id`, a job's id if it is a job.

    An `approval` is a call that waits for people.

    `run_id`: the run of its key, if the framework does not repeat it.
    """

    call_id: str
    tool_name: str
    kind: Kind = "call"
    run_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a framework stores, as metadata or as an interrupt's value."""
        known = {_KIND: self.kind, CALL: self.call_id, TOOL: self.tool_name}
        return known if self.run_id is None else {**known, RUN: self.run_id}

    @classmethod
    def of(cls, known: object) -> "DeferredStep | None":
        """Parse the output of `to_json`; `None` for anything else."""
        if not isinstance(known, Mapping):
            return None
        call_id, tool_name, run_id = known.get(CALL), known.get(TOOL), known.get(RUN)
        said = known.get(_KIND, "call")
        kind = _KINDS.get(said) if isinstance(said, str) else None
        if not (isinstance(call_id, str) and isinstance(tool_name, str)) or kind is None:
            return None
        return cls(call_id, tool_name, kind, run_id if isinstance(run_id, str) else None)


class StillRunning(Exception):
    """The call continues: any process can ask for its end by the `step`, and the same call made again joins it."""

    def __init__(self, step: DeferredStep) -> None:
        super().__init__(f"The {step.kind} {step.call_id!r} of {step.tool_name!r} goes on.")
        self.step = step
