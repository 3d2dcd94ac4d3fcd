"""Runs one command in the background, under limits, and writes down how it ended. A program of its own: nobody imports it.

`keeper.py JOB` reads the job, a JSON file, and works in its folder: `started.json` is there before the command starts, so
that nobody starts it twice; `end.json` when all that it started has ended; `log/` holds what it printed, in pieces named
by the position of their first byte; a file `cancel` asks for the end. A lock that the keeper inherits says that it lives.

The job says whether the command runs in a sandbox (`sandboxes/`); it is never started without one that the job asks for. Else
there are limits against accidents only: it runs as the module's own user and reaches what that user reaches.
"""

import contextlib
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # an isolated interpreter looks nowhere near its program

from modules.kept_log import Log
from modules.sandboxes import linux
from modules.sandboxes.commands import OpenCommand, SandboxedCommand
from modules.sandboxes.processes import below, lowered
from modules.sandboxes.sandbox import ProgramMissing

TICK_SECONDS = 0.02  # between two looks at a command that does something: a fork bomb must not get far
REST_SECONDS = 0.25  # the longest pause while nothing changes: a keeper at rest costs nothing
CANCEL_SECONDS = 0.1  # between two looks for the file
KILL_SECONDS = 5.0  # for what does not end even when killed
USER_PROCESSES = 4096  # of our user in all: the kernel's net, if a bomb is faster than we are; root has none
FLOOD_BYTES = 4 * 2**20  # read a second: who prints more is slowed down, and does not wear the disk out
_STDIN = 0


class Command:
    """The running command and all that it started."""

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        self._job = job
        self._cancel = folder / "cancel"
        self._log = Log(folder / "log", job["log_bytes"])
        self._read_bytes = 0.0
        self._read_at = self._next_look = time.monotonic()
        self._alive: list[int] = []
        self._seen: tuple[list[int], int] = ([], 0)
        self._signals = _wake_by_signals()
        start = OpenCommand if job["sandbox"] is None else SandboxedCommand
        self._command = start(job, self._limit)
        self.pid = self._command.pid
        self.exit_code: int | None = None
        self._output = self._command.output
        os.set_blocking(self._output, False)

    def watch(self, *, until: float | None) -> str | None:
        """Wait for its end; returns why it must end, or `None` when it did so by itself. `until` is a monotonic time."""
        tick = TICK_SECONDS
        with selectors.DefaultSelector() as selector:
            if self._job["end_with_parent"]:
                selector.register(_STDIN, selectors.EVENT_READ)
            selector.register(self._signals, selectors.EVENT_READ)
            while self._bury() and self.exit_code is None:
                now = time.monotonic()
                if until is not None and now > until:
                    return "timed_out"
                if self._is_crowded():
                    return "processes"
                if now > self._next_look and self._looks_cancelled(now):
                    return "cancelled"
                self._read()
                tick = TICK_SECONDS if self._has_changed() else min(tick * 1.5, REST_SECONDS)
                if any(not os.read(key.fd, 1024) for key, _ in selector.select(tick)):
                    return "cancelled"  # it is our parent that has closed its end
        return None

    def end(self, *, grace_seconds: float) -> None:
        """End all that is left: by asking, and after `grace_seconds` by force. Reads what they still had to say."""
        give_up_at = time.monotonic() + grace_seconds
        self._signal(signal.SIGTERM)
        while self._bury() and time.monotonic() < give_up_at:
            self._read()
            time.sleep(TICK_SECONDS)
        give_up_at = time.monotonic() + KILL_SECONDS
        # No pause: who multiplies would use it.
        while self._bury() and time.monotonic() < give_up_at:
            self._signal(signal.SIGKILL)
        self._read_bytes = 0
        self._read()

    def _looks_cancelled(self, now: float) -> bool:
        self._next_look = now + CANCEL_SECONDS
        return self._cancel.exists()

    def _read(self) -> None:
        now = time.monotonic()
        self._read_bytes = max(0, self._read_bytes - FLOOD_BYTES * (now - self._read_at))
        self._read_at = now
        with contextlib.suppress(BlockingIOError):
            while self._read_bytes < FLOOD_BYTES and (data := os.read(self._output, 65536)):
                self._read_bytes += len(data)
                self._log.add(data)

    def _signal(self, signum: signal.Signals) -> None:
        hidden = self._command.hidden if signum == signal.SIGTERM else 0  # what they look after may end in good order
        if not hidden:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signum)  # all at once, before one can start another
        for pid in islice(below(os.getpid()), hidden, None):  # and those that left the group
            with contextlib.suppress(OSError):
                os.kill(pid, signum)

    def _bury(self) -> bool:
        """Take leave of what is dead, also of what the command started and left alone. Whether anything lives."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.exit_code = self._command.exit_code(status)

    def _is_crowded(self) -> bool:
        limit: int = self._job["processes"] + self._command.hidden
        self._alive = list(islice(below(os.getpid()), limit + 1))
        return len(self._alive) > limit

    def _has_changed(self) -> bool:
        """Whether other processes live than at the look before, or something was printed."""
        before, self._seen = self._seen, (self._alive, self._log.position)
        return self._seen != before

    def _limit(self) -> None:
        """Runs in the child, before the command."""
        linux.die_with_parent()
        linux.be_killed_first()
        os.nice(self._job["nice"])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, lowered(resource.RLIMIT_FSIZE, self._job["file_bytes"]))
        if self._job["memory_bytes"] is not None:
            resource.setrlimit(resource.RLIMIT_AS, lowered(resource.RLIMIT_AS, self._job["memory_bytes"]))
        resource.setrlimit(resource.RLIMIT_NPROC, lowered(resource.RLIMIT_NPROC, USER_PROCESSES))


def main() -> None:
    """Run the job, and write its end."""
    path = Path(sys.argv[1])
    folder, job = path.parent, json.loads(path.read_text("utf-8"))
    os.chdir("/")  # nobody's folder is in use because of us
    os.set_inheritable(job["lock"], False)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Asked to end, we end the command in good order first.
        signal.signal(signum, lambda *_: (folder / "cancel").touch())
    if (folder / "cancel").exists():
        _write(folder / "end.json", {"why": "cancelled", "exit_code": None, "ended_at": time.time()})
        return
    _write(folder / "started.json", {"keeper": os.getpid(), "started_at": time.time()})
    linux.adopt_orphans()  # what the command starts and leaves behind becomes our child
    _write(folder / "end.json", {**_run(job, folder), "ended_at": time.time()})


def _run(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    limit = job["timeout_seconds"]
    until = None if limit is None else time.monotonic() + limit
    try:
        command = Command(job, folder)
    except (OSError, subprocess.SubprocessError, ProgramMissing, RuntimeError) as exc:
        return {"why": "not_started", "exit_code": None, "error": str(exc)}
    why: str | None = "failed"
    try:
        _write(folder / "running.json", {"pid": command.pid, "start": _start_of(command.pid)})
        why = command.watch(until=until)
    finally:
        # What the command has left behind when it ended by itself gets no time: nobody waits for it.
        command.end(grace_seconds=job["grace_seconds"] if why else 0)
    return {"why": why or "ended", "exit_code": command.exit_code}


def _wake_by_signals() -> int:
    """A descriptor that becomes readable with a signal, such as that of a child's end, so that no pause delays it."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _write(path: Path, document: dict[str, Any]) -> None:
    """Whole or not at all, also after a crash of the machine."""
    draft = path.with_suffix(".draft")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _start_of(pid: int) -> str | None:
    """When the process started, in the kernel's ticks: with it, a pid is not taken for another's. `None` without /proc."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None


if __name__ == "__main__":
    main()
