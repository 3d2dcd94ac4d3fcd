"""Defines where a job is, as it is written down, and what a step in it comes to."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from toolfleet_registry.contracts import ErrorCode, Message, Since
from toolfleet_registry.contracts.jobs import JobState

Outcome = Literal["completed", "failed", "timed_out"]


class JobPosition(Message):
    """Where a job is. Written down, it is also what a change is compared with: two who move a job cannot both do so.

    `step`: the call that is under way, or was the last (-1: none yet); `first`: the step before this round's first poll;
    `faults`: polls in a row that have failed; `due_at`: when something is to be done about a job that waits; `call_until`:
    the deadline of the call that is under way; `call_id`: that call's, if it is one of somebody else's; `poll_until`: when
    this round has polled enough; `missing`: what the last answer did not have of its condition; `by`: whose change it was;
    `runs`: how many rounds have ended, of a job that counts them.
    Times are by Redis's clock.
    """

    state: JobState
    step: int = -1
    first: int = 0
    faults: int = Field(default=0, ge=0)
    due_at: float | None = None
    call_until: float | None = None
    call_id: str | None = None
    poll_until: float | None = None
    missing: str | None = None
    by: str = ""
    runs: Annotated[int, Field(ge=0), Since(2)] = 0

    @property
    def is_under_way(self) -> bool:
        """Whether a call of it is."""
        return self.state in {"starting", "polling"} and self.call_until is not None


@dataclass(frozen=True, slots=True)
class EndedRound:
    """How a round has ended, or the job."""

    state: Outcome
    result: Any = None
    error: str | None = None
    error_code: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """What follows: the job's new `place`, and what there is to tell. `is_over`: nothing comes after it.

    `round_step` names the round whose end it is, of a job with several. `reason`: why, if it ends and nobody is told.
    """

    place: JobPosition
    ended: EndedRound | None = None
    is_over: bool = False
    round_step: int | None = None
    reason: str | None = None
