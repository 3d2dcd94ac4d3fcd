"""Names which wake-ups a command means, and what one step over them has come to."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.kept_wakes import WaitingKind

WakeAction: TypeAlias = Literal["replay", "drop"]
"""What is done with them."""


@dataclass(frozen=True, slots=True)
class ChosenWakes:
    """A selection of wake-ups: of a `kind`, with `about` in their id or subject and `error` in their last error, that have waited for so long."""

    kind: "WaitingKind | None" = None
    about: str = ""
    error: str = ""
    min_age_seconds: int = 0

    @property
    def is_all(self) -> bool:
        """Whether no filter narrows them."""
        return self == ChosenWakes()


@dataclass(frozen=True, slots=True)
class WakeStep:
    """The result of one step: how many were handled, how many of these are being tried just now, the problems of others, and where the next step continues."""

    done: int
    under_way: int = 0
    problems: list[str] = field(default_factory=list)
    next: str | None = None

    def joined(self, following: "WakeStep") -> "WakeStep":
        """Return the sum of this step and the one that follows it."""
        done, under_way = self.done + following.done, self.under_way + following.under_way
        return WakeStep(done, under_way, [*self.problems, *following.problems], following.next)
