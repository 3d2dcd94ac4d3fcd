"""What a module remembers of its calls, so that a repeat of one does not do it twice."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

State = Literal["running", "done", "failed", "stopped", "refused"]
"""At work; answered with a success or a failure; ended in the middle; given up before it began, for ever."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of one call. `token` names this writing of it, and no other.

    `fingerprint` is that of the request, `until` (epoch) when a running one counts as dead unless it was renewed, and
    `reply` the JSON that was answered. Of `is_repeatable` ones a second run does nothing more: a store that is short of
    room forgets those first. It need not keep that.
    """

    state: State
    token: str
    fingerprint: str = ""
    until: float = 0
    reply: str = ""
    is_repeatable: bool = field(default=False, compare=False)


class Replies(Protocol):
    """Where records are kept: one writing replaces another only if that is the one that was seen.

    A method raises whatever goes wrong; none waits for long. With processes that share a store, a call begins in one of
    them only.
    """

    async def get(self, call_id: str) -> Record | None:
        """The record of a call; `None` if there is none, or none any more."""
        ...

    async def swap(self, call_id: str, seen: str | None, record: Record | None) -> bool:
        """Keep `record` (`None`: nothing) if what is kept has the token `seen` (`None`: if nothing is kept)."""
        ...

    async def complete_since(self) -> float:
        """Since when (epoch) no record can have been lost: a call that is not known and is younger was never begun.

        `inf` if nobody can say that.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections and files. It may be used again afterwards."""
        ...
