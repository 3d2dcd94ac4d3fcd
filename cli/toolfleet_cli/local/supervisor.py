"""Keeps the processes of a fleet alive: starts them, waits until they are ready, restarts them, ends them in order."""

import asyncio
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal, TypeAlias

from toolfleet_modules.hosts.child_process import OrphanReaper, spawn
from toolfleet_modules.hosts.guard import signal_group
from toolfleet_registry.errors import ChildFailed
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.transport.leases import NOTE_VARIABLE, DeathReports, read_note, start_of

log = get_logger(__name__)

DEATHS = 5  # so many ends within the window below are no accident: restarting goes nowhere
DEATHS_WINDOW_SECONDS = 60.0
_FIRST_BACKOFF_SECONDS = 0.5  # doubled with each death in the window
_HURRY_SECONDS = 3.0  # for a child to end on its own, once the user has lost patience
_POLL_SECONDS = 0.05
_SILENCE_SECONDS = 10.0  # then a waiting user wants to know the reason
_TAIL_LINES = 15
_TAIL_BYTES = 64 * 2**10
_LARGEST_LOG_BYTES = 10 * 2**20

State: TypeAlias = Literal["starting", "ready", "stopping", "restarting", "dead"]
"""`stopping`: it was asked to end, to be started again; `restarting`: it has ended, and is started soon; `dead`: it is not started again."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run. `is_ready` is called until it returns True.

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
        """The program's name."""
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
        """Return the end of what it has written since its start."""
        with self.log_path.open("rb") as lines:
            size = lines.seek(0, 2)
            lines.seek(max(self._log_start, size - _TAIL_BYTES))
            return lines.read().decode(errors="replace")

    def plan_restart(self, now: float) -> bool:
        """Plan a restart after its end, each time with a longer delay. Return False after too many ends."""
        self._deaths.append(now)
        recent = sum(1 for death in self._deaths if now - death < DEATHS_WINDOW_SECONDS)
        self.restart_at = now + _FIRST_BACKOFF_SECONDS * 2 ** (recent - 1)
        return recent < DEATHS

    def failure(self, what: str) -> ChildFailed:
        """Return the error that says what happened, where the log is, and how it ends."""
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


class Supervisor:
    """The children of a fleet, in the groups in which they were started; they end in the reverse order.

    Belongs to the main thread, as `spawn` does. `stop` must be called; should we be killed, the orphan reaper ends them.
    """

    def __init__(self, logs: Path, *, announce: Callable[[str], None]) -> None:
        self._logs = logs
        self._announce = announce
        self._groups: list[list[Child]] = []
        self._dismissed: set[Child] = set()
        self._reaper = OrphanReaper()

    @property
    def children(self) -> list[Child]:
        """All of them, in the order of their start."""
        return [child for group in self._groups for child in group]

    @property
    def kept(self) -> list[Child]:
        """The children that were not dismissed."""
        return [child for child in self.children if child not in self._dismissed]

    def start(self, programs: Sequence[Program], *, at: int | None = None) -> list[Child]:
        """Start a group. Does not wait for it. `at`: its place among the groups, by which they end; the last one without."""
        group: list[Child] = []
        self._groups.insert(len(self._groups) if at is None else at, group)
        for program in programs:
            group.append(Child(program, self._logs / f"{program.name}.log"))
            self._reaper.watch(group[-1].pid)
        return group

    def wait_ready(self, children: Sequence[Child], *, seconds: float, check: Callable[[], None]) -> None:
        """Return when all of them are ready, or only optional ones are not, which is announced.

        Raises `ChildFailed` for one that is not optional; `check` is called all the while, and may raise.
        """
        waiting = list(children)
        give_up_at, silent_until = time.monotonic() + seconds, time.monotonic() + _SILENCE_SECONDS
        while waiting:
            check()
            waiting = [child for child in waiting if not self._is_settled(child)]
            if waiting and time.monotonic() > silent_until:
                silent_until += _SILENCE_SECONDS
                self._announce(f"Waiting for {waiting[0].name}; its log is {waiting[0].log_path}")
            if waiting and time.monotonic() > give_up_at:
                for child in sorted(waiting, key=lambda child: child.program.is_optional):
                    self._go_on_without(child, f"was not ready within {seconds:g} s")
                return
            time.sleep(_POLL_SECONDS if waiting else 0)

    def tend(self) -> None:
        """Check all children once: one that has ended is restarted, a little later.

        One that ends again and again is dead from then on, if it is optional; else this raises `ChildFailed`.
        """
        now = time.monotonic()
        for child in self.children:
            child.report()
            if child.is_dead:
                continue
            if child.restart_at is not None:
                self._start_again(child, now)
            elif child.exit_code is not None:
                self._bury(child, now)
            elif child.is_overdue(now):
                child.kill()
            elif not child.is_ready:
                self._note_readiness(child)

    def restart(self, name: str) -> bool:
        """Have the child of this name restart; returns at once, `tend` does it. False if there is none."""
        child = self._kept(name)
        if child is not None:
            child.ask_to_restart(time.monotonic())
        return child is not None

    def replace(self, program: Program) -> bool:
        """Have the child of this name end, and start as this program; returns at once. False if there is none."""
        child = self._kept(program.name)
        if child is not None:
            child.program = program
            child.ask_to_restart(time.monotonic())
        return child is not None

    def dismiss(self, child: Child) -> None:
        """Have one end in good order, within its patience, and forget it then. Returns at once; `tend` does it."""
        self._dismissed.add(child)
        if child.exit_code is None:
            child.ask_to_restart(time.monotonic())
        else:
            self._forget(child)

    def stop(self, *, in_hurry: Callable[[], bool]) -> None:
        """End all, the last group first, each within its patience; with less of it as soon as `in_hurry` says so."""
        for group in reversed(self._groups):
            _end(group, in_hurry=in_hurry)
            for child in group:
                child.report()
                self._reaper.release(child.pid)
        self._groups.clear()
        self._reaper.close()

    def _kept(self, name: str) -> Child | None:
        return next((child for child in self.kept if child.name == name), None)

    def _forget(self, child: Child) -> None:
        child.kill()  # what it has left behind
        child.report()
        self._reaper.release(child.pid)
        self._dismissed.discard(child)
        self._groups = [rest for group in self._groups if (rest := [each for each in group if each is not child])]

    def _is_settled(self, child: Child) -> bool:
        """Return whether there is nothing more to wait for: it is ready, or has ended, and is `tend`'s from now on."""
        if child.exit_code is None:
            return self._note_readiness(child)
        self._go_on_without(child, f"ended with exit code {child.exit_code} instead of starting")
        return True

    def _go_on_without(self, child: Child, what: str) -> None:
        failure = child.failure(what)
        if not child.program.is_optional:
            raise failure
        self._announce(f"The fleet goes on without {child.name}, and uses it once it is ready: {failure}")

    def _note_readiness(self, child: Child) -> bool:
        if not child.program.is_ready(child):
            return False
        child.is_ready = True
        self._announce(f"{child.name} is ready")
        return True

    def _start_again(self, child: Child, now: float) -> None:
        if child.restart_at is not None and now >= child.restart_at:
            child.restart()
            self._reaper.watch(child.pid)

    def _bury(self, child: Child, now: float) -> None:
        code = child.exit_code
        child.kill()  # what it has left behind
        self._reaper.release(child.pid)
        if child in self._dismissed:
            self._forget(child)
            return
        if child.is_awaited:
            child.restart_at = now
            return
        log.warning("child_ended", name=child.name, exit_code=code, log=str(child.log_path))
        if child.plan_restart(now):
            self._announce(
                f"{child.name} ended with exit code {code} and is started again; its log is {child.log_path}"
            )
            return
        end = f"ended {DEATHS} times within {DEATHS_WINDOW_SECONDS:g} s, last with exit code {code}"
        if not child.program.is_optional:
            raise child.failure(end)
        child.is_dead = True
        self._announce(
            f"{child.name} {end}: it is not started again, the rest goes on. Its log is {child.log_path}; "
            f"`toolfleet restart {child.name}` gives it another try."
        )


def _end(group: Sequence[Child], *, in_hurry: Callable[[], bool]) -> None:
    started = time.monotonic()
    hurried_at: float | None = None
    for child in group:
        if not child.is_awaited:  # or it has had its signal
            child.send(signal.SIGTERM)
    while alive := [child for child in group if child.exit_code is None]:
        now = time.monotonic()
        if hurried_at is None and in_hurry():
            hurried_at = now
            for child in alive:
                child.send(child.program.hurry_signal)
        for child in alive:
            if now - started > child.program.patience_seconds or (hurried_at and now - hurried_at > _HURRY_SECONDS):
                child.kill()
        time.sleep(_POLL_SECONDS)
    for child in group:
        child.kill()  # what it has left behind


class StopRequested(KeyboardInterrupt):
    """A signal requests the end. As for Ctrl-C, no `except Exception` stops it."""


class StopSignals:
    """The signals received so far.

    Raises from within the handler only where `interrupts` allows it: raised at any other moment, it could lose track of
    a child that was just started.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._may_raise = False

    @property
    def in_hurry(self) -> bool:
        """Whether the end was requested more than once."""
        return self._asked > 1

    def check(self) -> None:
        """Raise `StopRequested` if we were asked to end."""
        if self._asked:
            raise StopRequested

    @contextmanager
    def interrupts(self) -> Generator[None]:
        """Raise `StopRequested` inside as soon as we are asked."""
        self.check()
        self._may_raise = True
        try:
            yield
        finally:
            self._may_raise = False

    @contextmanager
    def held(self) -> Generator[None]:
        """Suspend `interrupts` inside; a request is raised at the end."""
        before, self._may_raise = self._may_raise, False
        try:
            yield
        finally:
            self._may_raise = before
        if before:
            self.check()

    def take(self, _signum: int, _frame: FrameType | None) -> None:
        """Note a request, and raise where that is allowed. Called as the handler of the signals.

        In an event loop it is raised between two tasks: a task that it struck would be reported as failed.
        """
        self._asked += 1
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._interrupt()
        else:
            loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self._may_raise:
            raise StopRequested


@contextmanager
def stop_signals() -> Generator[StopSignals]:
    """Take the signals over, and give them back at the end. Main thread only."""
    signals = StopSignals()
    # Under `nohup` it is the terminal's end that must not end us.
    taken = [signum for signum in _SIGNALS if (signum, signal.getsignal(signum)) != (signal.SIGHUP, signal.SIG_IGN)]
    before = {signum: signal.signal(signum, signals.take) for signum in taken}
    try:
        yield signals
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
