"""What a run has left of jobs, for the checks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from chaos.records.acts import Act
from chaos.records.fleet_time import FleetTime
from chaos.records.job_notes import JobNote, JobRecord
from chaos.records.journal import Entry, Journal
from toolfleet_registry.contracts import ToolResult

LOOK_SECONDS = 3.0
"""What it takes, when Redis is back, until a worker has found it, stored a reply, and looked at the job."""


@dataclass(frozen=True)
class JobEvidence:
    """`records` are by their ids; `stored` has the results of their calls; `expected`: how many were asked for.

    `time`: what times in the journal are by the fleet's clock. By the machine's: `away` has from when to when RabbitMQ was,
    `unstored` the same of a Redis that took nothing.
    """

    notes: list[JobNote]
    records: Mapping[str, JobRecord]
    acts: list[Act]
    journal: Journal
    stored: Mapping[str, ToolResult]
    expected: int
    has_core: bool = True
    time: FleetTime = field(default_factory=FleetTime)
    away: Sequence[tuple[float, float]] = ()
    unstored: Sequence[tuple[float, float]] = ()

    def late(self, deadline_at: float, ended_at: float) -> float:
        """By how many seconds, without those in which RabbitMQ was away: nobody is told then what is due."""
        spans = [
            (max(self.time.at(since), deadline_at), min(self.time.at(until), ended_at)) for since, until in self.away
        ]
        return ended_at - deadline_at - sum(max(until - since, 0) for since, until in spans)

    def came_too_late(self, replied_at: float, deadline_at: float) -> bool:
        """Whether Redis took nothing from a reply on, until there was no time left to look at it."""
        return any(
            self.time.at(since) <= replied_at <= self.time.at(until)
            and self.time.at(until) + LOOK_SECONDS > deadline_at
            for since, until in self.unstored
        )

    @cached_property
    def note_of(self) -> dict[str, JobNote]:
        return {note.ref: note for note in self.notes}

    @cached_property
    def steps(self) -> dict[str, dict[int, list[Entry]]]:
        """The journal's lines of each job's calls, by their number."""
        found: defaultdict[str, dict[int, list[Entry]]] = defaultdict(dict)
        for call_id, entries in self.journal.by_call.items():
            job_id, _, number = call_id.rpartition(".")
            if number.isdecimal() and not job_id.endswith(".then"):
                found[job_id][int(number)] = entries
        return found
