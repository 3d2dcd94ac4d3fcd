"""Knows where modules are, which of a module's processes has what, and chooses the one that gets a call.

One that could not be reached is ejected for a while, and longer each time. It gets calls again, one at first, when that is over.
"""

import math
import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.attempts import StatusMissing
from toolfleet_registry.directory.entries import Replica
from toolfleet_registry.headers import NO_HEADERS, ModuleHeaders
from toolfleet_registry.system import machine_clock, randomness
from toolfleet_workers.executors.module_client import REPLICA_HEADER, ModuleResponse, is_left_by
from toolfleet_workers.executors.request import COMMON_HEADERS, PROBE_HEADERS, Target
from toolfleet_workers.executors.status import QUESTION_HEADERS, StatusTarget

_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 30.0  # of an ejection: a restart takes a second or two
_TRIAL_SECONDS = 2.0  # that the others wait for what comes of the first call after an ejection
_ID = re.compile("[\x21-\x7e]{1,200}")  # it is a header's value, and a word of a note
_SHARED = "shared"

ABSENT_SECONDS = 5.0
_MOST_DEPARTURES = 10_000  # that are remembered: earlier ones are asked about again

Process = tuple[str, str]
"""A module's name, and the id of one of its processes."""


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
        """Return the one that a ledger's note is about, if it is still there."""
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
        """Return all of them, those first that can probably be reached."""
        return sorted(self._states.values(), key=lambda state: state.ejected_until)

    def counts(self) -> dict[str, tuple[int, int, float]]:
        """Return for each its calls in flight, how often it could not be reached, and for how many seconds it is ejected."""
        now = machine_clock.monotonic()
        return {
            id_: (state.in_flight, state.failures, round(max(state.ejected_until - now, 0.0), 1))
            for id_, state in self._states.items()
        }


def id_in(note: str) -> str:
    """Return the id in a ledger's note."""
    return note.partition(" ")[0]


def is_shared(note: str) -> bool:
    """Return whether a ledger's note says that other replicas know the call's outcome."""
    return note.partition(" ")[2] == _SHARED


def _two_of(states: Sequence[ReplicaState]) -> Sequence[ReplicaState]:
    """Return two different ones at random, in random order; or the only one."""
    if len(states) == 1:
        return states
    first, second = randomness.randrange(len(states)), randomness.randrange(len(states) - 1)
    return states[first], states[second + (second >= first)]


@dataclass(frozen=True, slots=True)
class Address:
    """The targets of one URL. `replica`: the id of the intended process, "" for any."""

    url: str
    call: Target
    question: Target
    status: Target
    health: Target
    headers: ModuleHeaders
    replica: str = ""

    @classmethod
    def at(cls, url: str, headers: ModuleHeaders, *, known: "Address | None", replica: str = "") -> "Address":
        """Return the address there; the one that was known, if it is the same."""
        if known is not None and (known.url, known.headers, known.replica) == (url, headers, replica):
            return known
        base, own = url.rstrip("/"), headers.plain()
        meant = {REPLICA_HEADER: replica} if replica else {}
        return cls(
            url,
            call=Target.of(f"{base}/execute", {**COMMON_HEADERS, **meant, **own}),
            question=Target.of(f"{base}/reconcile", {**QUESTION_HEADERS, **meant, **own}),
            status=Target.of(f"{base}/status", {**QUESTION_HEADERS, **meant, **own}),
            health=Target.of(f"{base}/health", {**PROBE_HEADERS, **own}, method="GET"),
            headers=headers,
            replica=replica,
        )

    def is_left_by(self, response: ModuleResponse) -> bool:
        """Return whether another process has answered, and has done nothing but say so."""
        return is_left_by(response, self.replica)


class AddressBook:
    """The present addresses. `serve` replaces them; a request under way may keep using a replaced one.

    `replicas` has the processes of each module that several may serve, by its name.
    """

    def __init__(self) -> None:
        self.replicas: Mapping[str, Replicas] = {}
        self._single: Mapping[str, Address] = {}
        self._of_replicas: Mapping[str, Mapping[str, Address]] = {}
        self._headers: Mapping[str, ModuleHeaders] = {}
        self._ended = frozenset[str]()
        self._departures = Departures()
        self._served: tuple[object, ...] = ()

    def serve(
        self,
        services: Mapping[str, str],
        headers: Mapping[str, ModuleHeaders],
        ended: frozenset[str],
        replicas: Mapping[str, tuple[Replica, ...]],
    ) -> bool:
        """Have these from now on; false if they are what was there."""
        several = {name: each for name, each in replicas.items() if each}
        served = (dict(services), headers, ended, several)
        if served == self._served:
            return False
        self._served, self._headers, self._ended = served, headers, ended
        before, there = self._single, {(name, id_) for name, each in self._of_replicas.items() for id_ in each}
        self._single = {
            name: Address.at(url, self.headers_of(name), known=before.get(name)) for name, url in services.items()
        }
        self.replicas = {name: self.replicas.get(name) or Replicas() for name in several}
        self._of_replicas = {name: self._addresses_of(name, each) for name, each in several.items()}
        self._departures.serve({(name, id_) for name, each in self._of_replicas.items() for id_ in each}, before=there)
        return True

    def headers_of(self, module: str) -> ModuleHeaders:
        """Return the header fields of each request to the module."""
        return self._headers.get(module, NO_HEADERS)

    def of(self, module: str) -> Iterable[Address]:
        """Return all addresses of the module."""
        if (several := self._of_replicas.get(module)) is not None:
            return several.values()
        return [self._single[module]] if module in self._single else []

    def replica(self, module: str, replica_id: str) -> Address | None:
        """Return the address of one of its processes, if that is still there."""
        return self._of_replicas.get(module, {}).get(replica_id)

    def first(self, module: str) -> Address | None:
        """Return the address of a module that has one, else one of them."""
        several = self._of_replicas.get(module)
        return self._single.get(module) if several is None else next(iter(several.values()), None)

    def every(self) -> Iterable[Address]:
        """Return all addresses."""
        return [address for name in {*self._single, *self._of_replicas} for address in self.of(name)]

    def why_unknown(self, module: str) -> str:
        """Return the message for a call of a module that has no address."""
        if module in self._ended:
            return f"Module {module!r} was removed before this call began."
        return f"Unknown module: {module}"

    def who_knows(self, module: str, note: str) -> list[Address]:
        """Return the processes that can tell the outcome of a call that the ledger's `note` is about, in the order in which to ask.

        A process that does not remember a call can say so with certainty only if the call went to it.
        """
        replicas = self.replicas.get(module)
        if replicas is None:  # the process at its one address now is none of those that were known by an id
            return [] if note else [*self.of(module)]
        addresses, noted = self._of_replicas[module], replicas.noted(note)
        mine = [] if noted is None else [addresses[noted.replica.id]]
        if not (is_shared(note) and replicas.has_shared_store):
            return mine
        return [*mine, *(addresses[state.replica.id] for state in replicas.in_order() if state is not noted)]

    def status_of(self, call: PublishedCall, note: str) -> StatusTarget | StatusMissing:
        """Return where to ask about a call that was accepted where the ledger's `note` says, or why no process can be asked."""
        module = call.tool_name.partition(".")[0]
        first, is_alone = next(iter(self.who_knows(module, note)), None), not is_shared(note)
        if first is not None:
            return StatusTarget(first.status, first.headers, first.replica if is_alone else "")
        if not (note and is_alone and (module in self.replicas or module in self._single)):
            return StatusMissing()
        is_gone = self._departures.is_gone(module, id_in(note))
        return StatusMissing(is_leaving=not is_gone, is_gone=is_gone)

    def _addresses_of(self, module: str, several: tuple[Replica, ...]) -> Mapping[str, Address]:
        replicas, known = self.replicas[module], self._of_replicas.get(module, {})
        replicas.serve(several)
        return {
            id_: Address.at(state.replica.url, self.headers_of(module), known=known.get(id_), replica=id_)
            for id_, state in replicas.states.items()
        }


class Departures:
    """Notes since when processes of modules are not there any more, and says which of them are gone for good.

    Those that one worker process knows of. A process that comes back has never left. Redis that has lost its data hears
    of all hosts again within less than `ABSENT_SECONDS`: what is missing for so long has left.
    """

    def __init__(self) -> None:
        self._since: dict[Process, float] = {}

    def serve(self, there: Collection[Process], *, before: Collection[Process]) -> None:
        """Have these from now on; those that were there `before` may have left."""
        for process in there:
            self._since.pop(process, None)
        for process in before:
            if process not in there:
                self._note(process)

    def is_gone(self, module: str, replica_id: str) -> bool:
        """Return whether an absent process has left for good. One without a note counts as just departed."""
        return machine_clock.monotonic() - self._note((module, replica_id)) >= ABSENT_SECONDS

    def _note(self, process: Process) -> float:
        since = self._since.setdefault(process, machine_clock.monotonic())
        if len(self._since) > _MOST_DEPARTURES:
            del self._since[next(iter(self._since))]
        return since
