"""Names which wake-ups a command means, and what one step over them has come to."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.kept_wakes import WaitingKind

WakeAction: TypeAlias = Literal["replay", "drop"]
"""What is done with them."""


@dataclass(frozen=True, slots=True)
class ChosenWakes:
    """Those of a `kind`, with `about` in their id or subject and `error` in their last error, that have waited for so long."""

    kind: "WaitingKind | None" = None
    about: str = ""
    error: str = ""
    min_age_seconds: int = 0

    @property
    def is_all(self) -> bool:
        """Whether nothing is said that narrows them."""
        return self == ChosenWakes()


@dataclass(frozen=True, slots=True)
class WakeStep:
    """How many were handled, how many of these are tried just now, what is the matter with others, and where the next step goes on."""

    done: int
    under_way: int
    problems: list[str]
    next: str | None
