"""Runs one process of a local fleet: starts it, remembers what it said last, and says when it may be started again."""

import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from toolfleet_cli.local.child_processes import signal_group, spawn
from toolfleet_registry.errors import ChildFailed
from toolfleet_tasks.transport.death_reports import NOTE_VARIABLE, DeathReports, read_note, start_of

DEATHS = 5  # so many ends within the window below are no accident: restarting goes nowhere
DEATHS_WINDOW_SECONDS = 60.0
_FIRST_BACKOFF_SECONDS = 0.5  # doubled with each death in the window
_TAIL_LINES = 15
_TAIL_BYTES = 64 * 2**10
_LARGEST_LOG_BYTES = 10 * 2**20

State: TypeAlias = Literal["starting", "ready", "stopping", "restarting", "dead"]
"""`stopping`: it was asked to end, to be started anew; `restarting`: it has ended, and is started soon; `dead`: not any more."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run. `is_ready` is asked until it says yes.

    `patience_seconds` is how long a regular shutdown may take; `hurry_signal` ends it fast, as regularly as that
    allows. `cwd` is by default that of its log; `pass_fds` are inherited. `is_optional`: the fleet continues without
    it. `reports`: the reporter that tells Redis of a worker that has ended.
    """

    name: str
    argv: Sequence[str | Path]
    is_ready: Callable[["Child"], bool]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: Path | None = None
    pass_fds: Sequence[int] = ()
    patience_seconds: float = 10.0
    hurry_signal: signal.Signals = signal.SIGTERM
    is_optional: bool = False
    reports: DeathReports | None = None


class Child:
    """A program while it runs, through all its restarts. Both its streams go to `log_path`."""

    def __init__(self, program: Program, log_path: Path) -> None:
        self.program = program
        self.log_path = log_path
        self.restart_at: float | None = None
        self.is_ready = False
        self.is_dead = False
        self._kill_at: float | None = None  # set while it ends because it is to be restarted
        self._is_buried = False
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._log_start = 0
        self._note = log_path.with_suffix(".note")
        self._process = self._spawn()

    @property
    def name(self) -> str:
        """The program's."""
        return self.program.name

    @property
    def pid(self) -> int:
        """The id of the present process, or of the last one."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """`None` while it runs."""
        return self._process.poll()

    @property
    def state(self) -> State:
        """Its state, as far as is known."""
        if self.is_dead:
            return "dead"
        if self.restart_at is not None:
            return "restarting"
        if self._kill_at is not None:
            return "stopping"
        return "ready" if self.is_ready else "starting"

    @property
    def is_awaited(self) -> bool:
        """Whether it was asked to end, so that its end is no crash."""
        return self._kill_at is not None

    def restart(self) -> None:
        """Start it once more, after its end."""
        self._process = self._spawn()
        self.restart_at = self._kill_at = None
        self.is_ready = self.is_dead = self._is_buried = False

    def ask_to_restart(self, now: float) -> None:
        """Have it shut down regularly, to be restarted; one that has ended is started at the next opportunity."""
        self._deaths.clear()
        self.is_dead = False
        if self._is_buried:
            self.restart_at = now
        elif self._kill_at is None:
            self._kill_at = now + self.program.patience_seconds
            self.send(signal.SIGTERM)

    def is_overdue(self, now: float) -> bool:
        """Return whether it was asked to end, and its time for that is over."""
        return self._kill_at is not None and now > self._kill_at

    def send(self, signum: signal.Signals) -> None:
        """Send the process a signal, if it still runs."""
        self._process.send_signal(signum)

    def kill(self) -> None:
        """Kill it, or its remaining processes, with all its children."""
        if not self._is_buried:  # or its number may be another's by now
            signal_group(self.pid, signal.SIGKILL)
            self._process.wait()
            self._is_buried = True
            note = read_note(self._note, pid=self.pid, began=self._began)  # only now: it was waited for
            if self.program.reports is not None and note is not None:
                self.program.reports.add(note)

    def report(self) -> None:
        """Have its processes that have ended reported, as far as that is due."""
        if self.program.reports is not None:
            self.program.reports.tend()

    def said(self) -> str:
        """The last that it has written since its start."""
        with self.log_path.open("rb") as lines:
            size = lines.seek(0, 2)
            lines.seek(max(self._log_start, size - _TAIL_BYTES))
            return lines.read().decode(errors="replace")

    def plan_restart(self, now: float) -> bool:
        """Plan a restart after its end, each time with a longer delay. False if there is no hope for it."""
        self._deaths.append(now)
        recent = sum(1 for death in self._deaths if now - death < DEATHS_WINDOW_SECONDS)
        self.restart_at = now + _FIRST_BACKOFF_SECONDS * 2 ** (recent - 1)
        return recent < DEATHS

    def failure(self, what: str) -> ChildFailed:
        """The error that says what happened, where the log is, and how it ends."""
        tail = "\n".join(self.said().splitlines()[-_TAIL_LINES:])
        return ChildFailed(f"{self.name} {what}; its log is {self.log_path}" + (f":\n{tail}" if tail else "."))

    def _spawn(self) -> subprocess.Popen[bytes]:
        program = self.program
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        _roll(self.log_path)
        self._note.unlink(missing_ok=True)  # of the process before
        env = program.env if program.reports is None else {**program.env, NOTE_VARIABLE: str(self._note.absolute())}
        with self.log_path.open("ab") as output:
            self._log_start = output.tell()
            # Celery imports from its working folder first: in a user's, a `redis.py` would stand in for the library.
            cwd = program.cwd or self.log_path.parent
            process = spawn(program.argv, env=env, cwd=cwd, output=output, pass_fds=program.pass_fds)
        self._began = start_of(process.pid)
        return process


def _roll(path: Path) -> None:
    """Keep one old log: a fleet that is started every day must not fill the disk."""
    if path.exists() and path.stat().st_size > _LARGEST_LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
