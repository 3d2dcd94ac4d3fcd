"""Says how long an attempt may still start: a worker with a lease on a call sends nothing once other workers may have it."""

import math
from dataclasses import dataclass
from typing import Protocol

ALLOWANCE_SECONDS = 1.0
"""How late a request may be at its module: clocks are read, and bytes travel. A lease ends so much after the last moment to begin."""


class LeaseOver(Exception):
    """The attempt may not begin any more: others may have the call by now. Nothing was sent."""


class Lease(Protocol):
    """The right to begin an attempt, the `attempt`th of its call."""

    @property
    def attempt(self) -> int:
        """Counted from 1: the module's fence against those before it."""
        ...

    def seconds_left(self) -> float:
        """Seconds in which the attempt may begin; 0 or less if it may not. Asked immediately before it does."""
        ...

    @property
    def replica(self) -> str:
        """The replica of its module that has started the call, as its executor noted it; "" for a single address."""
        ...

    @property
    def is_scattered(self) -> bool:
        """Whether an earlier attempt may have been elsewhere than at `replica`: a call unknown there may have happened all the same."""
        ...

    async def move(self, replica: str) -> None:
        """Note that the attempt goes to another process, before anything is sent there. Raises `LeaseOver`, with nothing noted."""
        ...

    def note_request(self, seconds: float, *, ended_at: float) -> None:
        """Note how long the module had the attempt's request, and when (by the machine's clock) that was over."""
        ...


@dataclass(frozen=True, slots=True)
class UnboundedLease:
    """The lease of a call that no other worker can have, or that has ended; see `Lease` for `replica`."""

    replica: str = ""
    attempt: int = 1
    is_scattered: bool = False

    def seconds_left(self) -> float:
        """Return infinity: it has no end."""
        return math.inf

    async def move(self, replica: str) -> None:
        """Do nothing: no other worker asks for the place."""

    def note_request(self, seconds: float, *, ended_at: float) -> None:
        """Do nothing: the duration is not used."""


UNBOUNDED: Lease = UnboundedLease()
"""The lease of a call that nobody else can have: one that was not claimed."""


def require_live(lease: Lease) -> None:
    """Raise `LeaseOver` unless the attempt may begin now. What begins it must follow at once: a pause in between is not seen."""
    if lease.seconds_left() <= 0:
        raise LeaseOver
