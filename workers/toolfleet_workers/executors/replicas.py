"""Chooses which of a module's processes gets a call: of two random ones that can be reached, the one with fewer calls in flight.

One that could not be reached is ejected for a while, and longer each time. It gets calls again, one at first, when that is over.
"""

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from toolfleet_registry.directory.entries import Replica
from toolfleet_registry.system import randomness
from toolfleet_registry.time import machine_clock

_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 30.0  # of an ejection: a restart takes a second or two
_TRIAL_SECONDS = 2.0  # that the others wait for what comes of the first call after an ejection
_ID = re.compile("[\x21-\x7e]{1,200}")  # it is a header's value, and a word of a note
_SHARED = "shared"


@dataclass(slots=True, eq=False)
class ReplicaState:
    """A process of the module as this one finds it. `failures`: how often it could not be reached."""

    replica: Replica
    in_flight: int = 0
    failures: int = 0
    pause: float = 0.0
    ejected_until: float = -math.inf
    trial_until: float = -math.inf

    @property
    def note(self) -> str:
        """The ledger's note: its id, and whether its replies are in a shared store."""
        return f"{self.replica.id} {_SHARED}" if self.replica.has_shared_store else self.replica.id

    def reached(self) -> None:
        """Note that it has answered."""
        self.pause, self.ejected_until, self.trial_until = 0.0, -math.inf, -math.inf

    def missed(self) -> bool:
        """Note that it could not be reached, and eject it; returns false if it was ejected already."""
        self.failures += 1
        if machine_clock.monotonic() < self.ejected_until:  # as another call has found before
            return False
        self.pause = min(max(2 * self.pause, _FIRST_SECONDS), _LONGEST_SECONDS)
        self.ejected_until = machine_clock.monotonic() + self.pause
        return True


class Replicas:
    """The processes of one module, for one worker process. Any order of calls is fine; there is nothing to wait for."""

    def __init__(self) -> None:
        self._states: dict[str, ReplicaState] = {}

    def serve(self, replicas: Sequence[Replica]) -> None:
        """Replace the replicas. The state of a remaining one is kept; calls of removed ones continue."""
        self._states = {
            each.id: known if (known := self._states.get(each.id)) and known.replica == each else ReplicaState(each)
            for each in replicas
            if _ID.fullmatch(each.id)
        }

    @property
    def states(self) -> Mapping[str, ReplicaState]:
        """The present replicas, by id."""
        return self._states

    @property
    def has_shared_store(self) -> bool:
        """Whether each of them knows the outcomes of the others' calls."""
        return all(state.replica.has_shared_store for state in self._states.values())

    def noted(self, note: str) -> ReplicaState | None:
        """The one that a ledger's note is about, if it is still there."""
        return self._states.get(id_in(note))

    def choose(self, besides: Container[str] = ()) -> ReplicaState | None:
        """Return the replica for a call, of those not in `besides`; an ejected one only if there is no other."""
        now = machine_clock.monotonic()
        left = [state for id_, state in self._states.items() if id_ not in besides]
        usable = [state for state in left if max(state.ejected_until, state.trial_until) <= now]
        if not usable:
            return min(left, key=lambda state: state.ejected_until, default=None)
        chosen = min(_two_of(usable), key=lambda state: state.in_flight)
        if chosen.pause:
            chosen.trial_until = now + _TRIAL_SECONDS
        return chosen

    def in_order(self) -> Sequence[ReplicaState]:
        """All of them, those first that can probably be reached."""
        return sorted(self._states.values(), key=lambda state: state.ejected_until)

    def counts(self) -> dict[str, tuple[int, int, float]]:
        """Return for each its calls in flight, how often it could not be reached, and for how many seconds it is ejected."""
        now = machine_clock.monotonic()
        return {
            id_: (state.in_flight, state.failures, round(max(state.ejected_until - now, 0.0), 1))
            for id_, state in self._states.items()
        }


def id_in(note: str) -> str:
    """The id in a ledger's note."""
    return note.partition(" ")[0]


def is_shared(note: str) -> bool:
    """Return whether a ledger's note says that other replicas know the call's outcome."""
    return note.partition(" ")[2] == _SHARED


def _two_of(states: Sequence[ReplicaState]) -> Sequence[ReplicaState]:
    """Two different ones by chance, in an order by chance; all, if there is one."""
    if len(states) == 1:
        return states
    first, second = randomness.randrange(len(states)), randomness.randrange(len(states) - 1)
    return states[first], states[second + (second >= first)]
