"""Starts and ends worker processes of one lane, so that there are as many as somebody wants."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from toolfleet_cli.local.child import Program
from toolfleet_cli.local.programs import worker_program
from toolfleet_cli.local.supervisor import Supervisor
from toolfleet_registry.settings import Settings
from toolfleet_tasks.metrics.fleet_facts import Lane


class LaneWorkers:
    """The workers that this process has started. Belongs to the main thread. `stop` must be called; should we be killed, they drain."""

    def __init__(self, lane: Lane, settings: Settings, logs: Path, *, announce: Callable[[str], None]) -> None:
        self._program = worker_program(lane, settings)
        self._supervisor = Supervisor(logs, announce=announce, orphan_seconds=self._program.patience_seconds)

    @property
    def count(self) -> int:
        """How many there are, those that are being ended not among them."""
        return len(self._supervisor.kept)

    def scale_to(self, count: int) -> None:
        """Have so many, from now on. Waits for nothing: a worker is ready in a second or two, and ends when its calls have."""
        kept = self._supervisor.kept
        for child in kept:
            if child.is_dead:  # it has ended again and again; another one may fare better
                self._supervisor.dismiss(child)
        for _ in range(self.count, count):
            self._supervisor.start([self._next()])
        for child in self._supervisor.kept[count:][::-1]:  # the last one started has the least to finish, most often
            self._supervisor.dismiss(child)

    def tend(self) -> None:
        """Look after them once: one that has ended by itself is started anew, a little later."""
        self._supervisor.tend()

    def stop(self, *, in_hurry: Callable[[], bool]) -> None:
        """End all. Each finishes its calls first; `in_hurry`: it puts them back into their queues."""
        self._supervisor.stop(in_hurry=in_hurry, together=True)

    def _next(self) -> Program:
        names = {child.name for child in self._supervisor.children}  # one that is still ending has its log to itself
        number = next(number for number in range(1, len(names) + 2) if f"{self._program.name}-{number}" not in names)
        name = f"{self._program.name}-{number}"
        *command, _ = self._program.argv  # the last word is a node name, which two must not have
        return replace(self._program, name=name, argv=[*command, f"{name}-{os.getpid()}@%h"])
