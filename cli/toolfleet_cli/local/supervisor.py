"""Keeps the processes of a fleet alive: starts them, waits until they are ready, restarts them, ends them in order."""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from toolfleet_cli.local.child import DEATHS, DEATHS_WINDOW_SECONDS, Child, Program
from toolfleet_cli.local.orphan_reaper import OrphanReaper
from toolfleet_registry.system.loggers import get_logger

_HURRY_SECONDS = 3.0  # for a child to end on its own, once the user has lost patience
_POLL_SECONDS = 0.05
_SILENCE_SECONDS = 10.0  # then a waiting user wants to know the reason

log = get_logger(__name__)


class Supervisor:
    """The children of a fleet, in the groups in which they were started; they end in the reverse order.

    Belongs to the main thread, as `spawn` does. `stop` must be called; should we be killed, the warden ends them.
    """

    def __init__(self, logs: Path, *, announce: Callable[[str], None]) -> None:
        self._logs = logs
        self._announce = announce
        self._groups: list[list[Child]] = []
        self._dismissed: set[Child] = set()
        self._warden = OrphanReaper()

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
            self._warden.watch(group[-1].pid)
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
        """Have one end in good order, within its patience, and forget it then; returns at once, `tend` sees to it."""
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
                self._warden.release(child.pid)
        self._groups.clear()
        self._warden.close()

    def _kept(self, name: str) -> Child | None:
        return next((child for child in self.kept if child.name == name), None)

    def _forget(self, child: Child) -> None:
        child.kill()  # what it has left behind
        child.report()
        self._warden.release(child.pid)
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
            self._warden.watch(child.pid)

    def _bury(self, child: Child, now: float) -> None:
        code = child.exit_code
        child.kill()  # what it has left behind
        self._warden.release(child.pid)
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
