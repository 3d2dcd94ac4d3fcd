"""Runs one program under limits and tells how it ended. A program of its own: nobody imports it.

It takes a job as one line of JSON on standard input and answers with one document of JSON on standard output. When
its standard input closes, whoever wanted the answer is gone, and it ends the program.

The job says how the program is kept apart from everything else: in namespaces (`sandboxes/sandbox.py`), or less well
(`shared_view.py`). It is never kept apart less well than the job says: rather it is not started.
"""

import base64
import contextlib
import json
import os
import resource
import selectors
import signal
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

sys.path.append(str(Path(__file__).parents[2]))  # an isolated interpreter looks nowhere near its program

from modules.code_executor.languages import PROGRAM_FILES, start_words
from modules.code_executor.output_folder import OUTPUT, Saved
from modules.sandboxes import linux, owners, sandbox
from modules.sandboxes.processes import below, lowered
from modules.sandboxes.view import View

if TYPE_CHECKING:
    from modules.code_executor.shared_view import SharedView

TICK_SECONDS = 0.005  # between two looks at the program: in this time a fork bomb makes some dozens of processes
USER_PROCESSES = 4096  # of our user in all: the kernel's net, if a bomb is faster than we are; root has none
TASKS = (
    128  # processes and threads beyond those allowed, before the kernel refuses more of them to a user id of its own
)
END_SECONDS = 5  # for ending all that the program started
MB = 2**20
_STDIN = 0


class Output:
    """What one stream printed: the beginning and the end of it, within `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._half = (limit + 1) // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Take what was printed next."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        surplus = max(0, len(self._tail) - self._half)
        del self._tail[:surplus]
        self._dropped += surplus

    def text(self, folder: str) -> str:
        """All of it, with a note where something is missing, and without the folder's name."""
        note = f"\n[… {self._dropped} bytes left out …]\n" if self._dropped else ""
        joined = (bytes(self._head) + note.encode() + bytes(self._tail)).decode("utf-8", "replace")
        return joined.replace(f"{folder}/", "")


class Program:
    """The running program and all that it started."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._limits: dict[str, Any] = job["limits"]
        self._is_apart = job["isolation"] == "namespaces"
        self.folder = f"/home/run_python-{os.urandom(4).hex()}"
        self._place = self._in_namespaces() if self._is_apart else self._in_shared_view()
        self.exit_code: int | None = None
        self.stdout = Output(self._limits["output_bytes"])
        self.stderr = Output(self._limits["output_bytes"])

    def watch(self) -> str | None:
        """Wait for its end; returns the limit that it broke, or 'cancelled' when nobody waits for it."""
        give_up_at = time.monotonic() + self._limits["wall_seconds"]
        with selectors.DefaultSelector() as selector:
            selector.register(_STDIN, selectors.EVENT_READ)
            selector.register(self._place.stdout, selectors.EVENT_READ, self.stdout)
            selector.register(self._place.stderr, selectors.EVENT_READ, self.stderr)
            while self._bury() and self.exit_code is None:
                if time.monotonic() > give_up_at:
                    return "wall_time"
                if self._is_crowded():
                    return "processes"
                for key, _ in selector.select(TICK_SECONDS):
                    data = os.read(key.fd, 65536)
                    if key.fd == _STDIN:
                        return "cancelled"
                    if data:
                        key.data.add(data)
                    else:
                        selector.unregister(key.fd)
        return "cpu_time" if self._spent_its_time() else None

    def end(self) -> bool:
        """Kill the program and all that it started, and read what they still had to say. Whether all are dead."""
        with contextlib.suppress(OSError):
            os.killpg(self._place.pid, signal.SIGKILL)  # all at once, before one can start another
        give_up_at = time.monotonic() + END_SECONDS
        # Those that left the group are killed one by one. No pause: they would use it to multiply.
        while self._bury() and time.monotonic() < give_up_at:
            for pid in below(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        for stream, output in ((self._place.stdout, self.stdout), (self._place.stderr, self.stderr)):
            _drain(stream, output)
        return not self._bury()

    def _bury(self) -> bool:
        """Take leave of what is dead, also of what the program started and left alone. Whether anything lives."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._place.pid:
                self.exit_code = self._place.exit_code(status)

    def collect(self, saved: Saved) -> None:
        """Take what it has saved. Nothing of it may live any more."""
        assert self._place.work is not None
        saved.collect_output(self._place.work)
        if self._place.tmp is not None:
            saved.collect_tmp(self._place.tmp, self._place.others)

    def close(self) -> None:
        """Remove what is left of it on disk."""
        self._place.close()

    def _is_crowded(self) -> bool:
        limit: int = self._limits["processes"] + (sandbox.PROCESSES if self._is_apart else 0)
        return len(list(islice(below(os.getpid()), limit + 1))) > limit

    def _in_namespaces(self) -> sandbox.Sandbox:
        limits = self._limits
        view = View(limits["disk_mb"], limits["network"], self.folder, self._fill)
        return sandbox.Sandbox(sandbox.Inside(view, self._exec, owners.id_of_this_process()))

    def _in_shared_view(self) -> "SharedView":
        # Its imports take as long as a sandbox does to start, which needs none of them.
        from modules.code_executor.shared_view import SharedView, Start

        place = SharedView(
            self._job["isolation"],
            Start(start_words(self._job["language"], "{folder}"), self._fill, _environment, self._limit),
            disk_mb=self._limits["disk_mb"],
            alone=self._job["alone"],
        )
        self.folder = place.folder
        return place

    def _fill(self, folder: Path) -> None:
        """The program stands outside its working folder, so that no file can have its name."""
        (folder / PROGRAM_FILES[self._job["language"]]).write_text(self._job["code"], "utf-8")
        (folder / "work" / OUTPUT).mkdir(parents=True)
        for name, data in self._job["files"].items():
            (folder / "work" / name).write_bytes(base64.b64decode(data))

    def _exec(self) -> NoReturn:
        self._limit()
        os.chdir(f"{self.folder}/work")
        argv = start_words(self._job["language"], self.folder)
        os.execve(argv[0], argv, _environment(self.folder))  # noqa: S606 - no shell is wanted

    def _limit(self) -> None:
        """Runs in the child, before the program."""
        limits = self._limits
        linux.die_with_parent()
        linux.gain_no_privileges()
        linux.be_killed_first()
        os.nice(19)  # or a fork bomb outruns us, who must count it
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory_mb"] * MB,) * 2)
        # The soft limit's signal tells us why; the hard one ends a program that ignores it.
        resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_seconds"], limits["cpu_seconds"] + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_mb"] * MB,) * 2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        # In a namespace of its own the kernel counts the program's alone.
        tasks = limits["processes"] + TASKS if self._is_apart and _counts_by_namespace() else USER_PROCESSES
        resource.setrlimit(resource.RLIMIT_NPROC, lowered(resource.RLIMIT_NPROC, tasks))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def _spent_its_time(self) -> bool:
        if self.exit_code == -signal.SIGXCPU:
            return True
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return self.exit_code == -signal.SIGKILL and used.ru_utime + used.ru_stime > self._limits["cpu_seconds"]


def main() -> None:
    """Take the job, run it, answer."""
    job = json.loads(sys.stdin.buffer.readline())
    linux.adopt_orphans()  # what the program starts and leaves behind becomes our child
    started_at = time.monotonic()
    program = Program(job)
    saved = Saved(job["limits"], job["most_bytes"])
    try:
        broken_limit = program.watch()
    finally:
        are_dead = program.end()
    if are_dead and broken_limit is None:
        program.collect(saved)
    program.close()
    answer = {
        "exit_code": -signal.SIGKILL if program.exit_code is None else program.exit_code,
        "broken_limit": broken_limit,
        "stdout": program.stdout.text(program.folder),
        "stderr": program.stderr.text(program.folder),
        "seconds": round(time.monotonic() - started_at, 3),
        "files": saved.files,
        "left_out": saved.left_out,
    }
    if broken_limit != "cancelled":
        sys.stdout.write(json.dumps(answer))


def _environment(folder: str) -> dict[str, str]:
    """All that the program knows of its surroundings. Python may import modules that lie among its files."""
    work = f"{folder}/work"
    return {"HOME": work, "TMPDIR": work, "PYTHONPATH": work, "PATH": os.defpath, "LANG": "C.UTF-8"}


def _counts_by_namespace() -> bool:
    """Whether the kernel counts a user's processes in each namespace of users: since 5.14."""
    major, minor = (int("".join(filter(str.isdigit, part))) for part in os.uname().release.split(".")[:2])
    return (major, minor) >= (5, 14)


def _drain(fd: int, output: Output) -> None:
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        while data := os.read(fd, 65536):
            output.add(data)


if __name__ == "__main__":
    main()
