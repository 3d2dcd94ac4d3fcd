"""What was measured, by system and workload: medians over the rounds, and ratios within a round."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.systems import SYSTEMS
from benchmarks.trial import Record


@dataclass(frozen=True)
class Spread:
    """A median, with the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None of nothing."""
        return cls(statistics.median(values), min(values), max(values)) if values else None


class Results:
    """Records, each with its `round`, `system` and `workload`; and what has failed."""

    def __init__(self, keep_in: Path) -> None:
        self._file = keep_in
        self._file.write_text("")
        self.records: list[Record] = []
        self.failures: dict[str, str] = {}
        self.round = 0
        """Which one is being measured."""

    def add(self, record: Record) -> None:
        """Keep a record of this round, in the file as well."""
        record = {"round": self.round, **record}
        self.records.append(record)
        with self._file.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def rounds(self, system: str, workload: str, key: str) -> dict[int, float]:
        """A system's figure in each round that has one; `key` may be `cpu.worker`."""
        found = {}
        for record in self.records:
            if (record["system"], record["workload"]) == (system, workload):
                value: Any = record
                for part in key.split("."):
                    value = value.get(part, {})
                if value != {}:
                    found[record["round"]] = float(value)
        return found

    def spread(self, system: str, workload: str, key: str) -> Spread | None:
        """A system's figure over all rounds."""
        return Spread.of(list(self.rounds(system, workload, key).values()))

    def ratio(self, one: tuple[str, str], other: tuple[str, str], key: str) -> Spread | None:
        """One (system, workload) to another, in the same round."""
        ours, theirs = self.rounds(*one, key), self.rounds(*other, key)
        return Spread.of([ours[number] / theirs[number] for number in ours if theirs.get(number)])

    def capacity(self, workload: str) -> float | None:
        """The highest rate that a queue had in this round that one could use instead."""
        peers = {system.name for system in SYSTEMS if system.kind == "peer"}
        rates = [self.rounds(name, workload, "rate").get(self.round) for name in peers]
        return max((rate for rate in rates if rate), default=None)

    def best_peer(self, workload: str, key: str, among: Sequence[str] = ()) -> str | None:
        """The queue that one could use instead with the highest median rate, or the lowest of another figure."""
        peers = among or [system.name for system in SYSTEMS if system.kind == "peer"]
        found = {name: spread.median for name in peers if (spread := self.spread(name, workload, key))}
        choose = max if key == "rate" else min
        return choose(found, key=lambda name: found[name], default=None)
