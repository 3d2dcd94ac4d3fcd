"""Defines what a module says that goes on with a call by itself: under which handle, and when to ask for it."""

import math
from dataclasses import dataclass

LONGEST_HANDLE = 512  # characters
LONGEST_POLL_SECONDS = 86_400.0  # more is no coming back


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A module has begun a call, and goes on with it by itself.

    `poll_after_seconds`: when it wants to be asked where the call is; `None` if it does not say.
    """

    handle: str
    poll_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StillAtWork:
    """A module says of a call that it has accepted that it is not over. `poll_after_seconds` as `Acceptance` has it."""

    poll_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StatusMissing:
    """A module has said nothing of a call that it has accepted, and is asked again.

    `is_silent`: it was there and did not answer in time; `is_unreached`: no connection could be made. Else it answered something.
    """

    is_silent: bool = False
    is_unreached: bool = False


def check_acceptance(handle: object, poll_after_seconds: float | None = None) -> None:
    """Raise `ValueError`, with a reason that can be shown, for a handle or a time that is none."""
    if not is_handle(handle):
        raise ValueError(f"a handle has 1 to {LONGEST_HANDLE} printable characters")
    if poll_after_seconds is not None and not is_poll_time(poll_after_seconds):
        raise ValueError(f"poll_after_seconds is 0 to {LONGEST_POLL_SECONDS:.0f}")


def is_handle(value: object) -> bool:
    """Whether it is 1 to 512 printable characters."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_HANDLE and value.isprintable()


def is_poll_time(value: object) -> bool:
    """Whether it is a number of seconds in which one can come back."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and 0 <= value <= LONGEST_POLL_SECONDS
