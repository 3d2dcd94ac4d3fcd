"""Defines the records of work that must be done only once, and the port of their stores."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from toolfleet_registry.system import randomness

_OF_ATTEMPT = "#"  # not a field of its own: then stores that know of none keep it, too

State = Literal["running", "done", "failed", "stopped", "refused", "open", "accepted", "asked"]
"""At work; answered with a success or a failure; ended in the middle; given up before it began, for ever; not begun, but no more for
attempts that are older than one that was seen; answered with a handle, while the work goes on; answered with a question."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one call, or of another piece of work."""

    state: State
    """Where the call is."""
    token: str
    """Names this writing of the record, and no other; in it stands for which attempt it was written."""
    fingerprint: str = ""
    """That of the request."""
    until: float = 0
    """When a running call counts as dead unless it was renewed, in seconds since the epoch."""
    reply: str = ""
    """The JSON that was answered."""
    is_repeatable: bool = field(default=False, compare=False)
    """Whether a second run does nothing more: a store that is short of room forgets such calls first. It need not keep this."""

    @property
    def attempt(self) -> int:
        """The number of the attempt for which it was written; 0 if that was not said."""
        number = self.token.rpartition(_OF_ATTEMPT)[2] if _OF_ATTEMPT in self.token else ""
        return int(number) if number.isascii() and number.isdigit() else 0


def new_token(attempt: int) -> str:
    """A token for a writing on behalf of the call's `attempt`th attempt; 0 if it does not say which it is."""
    return TokenSeries().next(attempt)


class TokenSeries:
    """Makes the tokens of one writer: an id of its own and a number, since an id for each writing costs more than all else of it."""

    __slots__ = ("_count", "_name")

    def __init__(self) -> None:
        self._name, self._count = randomness.uuid4_text(), 0

    def next(self, attempt: int) -> str:
        """A token as `new_token` makes it."""
        self._count += 1
        return f"{self._name}.{self._count}{_OF_ATTEMPT}{attempt}"


class OnceStore(Protocol):
    """A store of records by name: a write replaces a record only if that is the one that was read (compare and swap).

    A method may raise any exception; none waits for long. Of processes that share a store, only one starts the work of
    a name. `until` is by the clock of the process that asks: a store that machines share may use its own.
    """

    async def get(self, name: str) -> Record | None:
        """Return the record of this name; `None` if there is none, or none any more."""
        ...

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        """Store `record` (`None`: delete) if the stored record has the token `seen` (`None`: if there is none)."""
        ...

    async def complete_since(self) -> float:
        """Return the time (epoch) since when no record can have been lost: newer work without a record was never started.

        `inf` if that is unknown.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections and files. It may be used again afterwards."""
        ...
