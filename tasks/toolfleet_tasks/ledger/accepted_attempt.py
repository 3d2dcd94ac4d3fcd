"""Describes an attempt that its module goes on with by itself, as the ledger keeps it, and says when to ask for it."""

import json
from dataclasses import dataclass, replace
from typing import Self

from toolfleet_registry.contracts.outcomes import Acceptance, StatusMissing, StillAtWork, is_handle, is_poll_time

FIRST_SECONDS, LONGEST_SECONDS, GROWTH = 0.5, 30.0, 1.5
"""Until a module is asked that does not say when it wants to be: at first, at most, and how much longer each time."""
SHORTEST_SECONDS = 0.2
_LEAVING_SECONDS = 2.0  # until a process counts as gone, which is not there now
_LAST_SECONDS = 1.0  # before its deadline a call is asked for once more
_AFTER_SECONDS = 0.05  # a message that is to come once the deadline has passed comes so much later


@dataclass(frozen=True, slots=True)
class AcceptedAttempt:
    """`begun_at` by the fleet's clock; `wait_seconds`: until the module is asked where it is."""

    handle: str
    begun_at: float
    wait_seconds: float

    @classmethod
    def of(cls, acceptance: Acceptance, *, begun_at: float) -> Self:
        """One that was accepted just now."""
        wanted = acceptance.poll_after_seconds
        return cls(acceptance.handle, begun_at, FIRST_SECONDS if wanted is None else _bounded(wanted))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse a written attempt; `None` if it is invalid."""
        try:
            fields = json.loads(text)
            handle, begun_at, wait = fields["handle"], fields["begun_at"], fields["wait_seconds"]
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        is_known = is_handle(handle) and isinstance(begun_at, int | float) and is_poll_time(wait)
        return cls(handle, float(begun_at), float(wait)) if is_known else None

    def written(self) -> str:
        """As JSON."""
        return json.dumps({"handle": self.handle, "begun_at": self.begun_at, "wait_seconds": self.wait_seconds})

    def after(self, found: StillAtWork | StatusMissing) -> "AcceptedAttempt":
        """The same after it was asked for: the module says when it wants to be asked again, or is left alone for longer each time."""
        if isinstance(found, StatusMissing) and found.is_leaving:  # in a moment one knows
            return replace(self, wait_seconds=min(self.wait_seconds, _LEAVING_SECONDS))
        wanted = found.poll_after_seconds if isinstance(found, StillAtWork) else None
        seconds = self.wait_seconds * GROWTH if wanted is None else wanted
        return replace(self, wait_seconds=_bounded(seconds))

    def answered(self) -> "AcceptedAttempt":
        """The same once it is answered what it asks: the module is asked as soon as at first."""
        return replace(self, wait_seconds=FIRST_SECONDS)

    def delay(self, seconds_left: float, *, longest: float) -> float:
        """Return the delay of its message, with so much time left, and the longest delay of the broker.

        The last time it comes just before the deadline, and then once after it.
        """
        delay = min(self.wait_seconds, longest)
        if delay < seconds_left - _LAST_SECONDS:
            return delay
        last = seconds_left - _LAST_SECONDS
        return last if last >= SHORTEST_SECONDS else max(seconds_left, 0) + _AFTER_SECONDS


def _bounded(seconds: float) -> float:
    return min(max(seconds, SHORTEST_SECONDS), LONGEST_SECONDS)
