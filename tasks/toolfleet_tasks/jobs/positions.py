"""Defines where a job is, as it is written down, and what a step in it comes to."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from toolfleet_registry.contracts import ErrorCode, Message, Since
from toolfleet_registry.contracts.jobs import JobState

Outcome = Literal["completed", "failed", "timed_out"]


class JobPosition(Message):
    """The position of a job.

    Written down, it is also compared before a change: of two workers that move a job only one succeeds.

    `step`: the call that is under way, or was the last (-1: none yet); `first`: the step before this round's first
    poll; `faults`: polls in a row that have failed; `due_at`: the next time to act on a waiting job; `call_until`: the
    deadline of the call that is under way; `call_id`: that call's, if it is another client's; `poll_until`: the end of
    this round's polling; `missing`: the part of its condition that the last answer lacked; `by`: the id of the change;
    `runs`: the number of ended rounds, of a job that counts them. Times are by Redis's clock.
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
        """Whether one of its calls is under way."""
        return self.state in {"starting", "polling"} and self.call_until is not None


@dataclass(frozen=True, slots=True)
class EndedRound:
    """The end of a round, or of the job."""

    state: Outcome
    result: Any = None
    error: str | None = None
    error_code: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """The next state: the job's new `place`, and its end to report. `is_over`: nothing comes after it.

    `round_step` names the round that ended, of a job with several. `reason`: the reason of an end that is reported to
    no one.
    """

    place: JobPosition
    ended: EndedRound | None = None
    is_over: bool = False
    round_step: int | None = None
    reason: str | None = None
