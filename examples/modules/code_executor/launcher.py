"""Runs one Python program under limits and tells how it ended. A program of its own: nobody imports it.

It takes a job as one line of JSON on standard input and answers with one document of JSON on standard output. When
its standard input closes, whoever wanted the answer is gone, and it ends the program.

These are limits against accidents, not a sandbox: the program runs as the module's own user, reaches what that user
reaches, the network and other users' files included, and can find ways around what is said here. For code that may be
hostile, run the module in a container of its own without network, with a limit on its processes, and not as root.

What lies in the program's output folder at its end is part of the answer. It is looked at when nothing of the program
lives any more; links are not followed, and what is no plain file with one name is left out.
"""

import base64
import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TICK_SECONDS = 0.005  # between two looks at the program: in this time a fork bomb makes some dozens of processes
USER_PROCESSES = 4096  # of our user in all: the kernel's net, if a bomb is faster than we are; root has none
END_SECONDS = 5  # for ending all that the program started
OUTPUT = "output"
SEEN_FILES = 1000  # of the output folder; a program can make millions
MB = 2**20
_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36
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


class Saved:
    """What the program saved in its output folder, within limits, and what of it is left out, and why."""

    def __init__(self, limits: dict[str, Any], most_bytes: int) -> None:
        self._room = limits["saved_mb"] * MB
        self._most_files: int = limits["saved_files"]
        self._most_bytes = most_bytes
        self.files: dict[str, str] = {}  # in base64
        self.left_out: list[tuple[str, str]] = []

    def collect(self, work: int) -> None:
        """Take the files from the folder below `work`, the first by their names if there are too many."""
        try:
            folder = os.open(OUTPUT, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=work)
        except OSError as exc:
            if not isinstance(exc, FileNotFoundError):
                self.left_out.append((OUTPUT, "it is no folder any more, or cannot be read"))
            return
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in islice(entries, SEEN_FILES + 1))
            for name in names[: self._most_files]:
                self._take(name, folder)
        finally:
            os.close(folder)
        if surplus := len(names) - self._most_files:
            many = f"{surplus} more" if len(names) <= SEEN_FILES else f"more than {SEEN_FILES - self._most_files} more"
            if surplus > 0:
                self.left_out.append((many, f"{self._most_files} files are saved at most"))

    def _take(self, name: str, folder: int) -> None:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        try:
            data = self._content(name, folder)
        except ValueError as exc:
            self.left_out.append((shown, str(exc)))
        except OSError:
            self.left_out.append((shown, "it cannot be read"))
        else:
            self._room -= len(data)
            self.files[name] = base64.b64encode(data).decode()

    def _content(self, name: str, folder: int) -> bytes:
        """Raises `ValueError` with the reason for which a file is left out, or `OSError`."""
        # Looked at before it is opened: what a pipe or a device does then, nobody knows.
        first = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not name.isprintable():  # half characters, too: what Python makes of a name that is not UTF-8
            raise ValueError("its name has what cannot be printed")
        if not stat.S_ISREG(first.st_mode):
            raise ValueError("it is no file: links, folders and the like are not saved")
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_nlink != 1 or not os.path.samestat(first, status):
                raise ValueError("it has another name elsewhere, which is a hard link")
            most = min(self._most_bytes, self._room)
            data = file.read(most + 1) if status.st_size <= most else b""
        if max(len(data), status.st_size) > most:
            whose = "a file may have" if most == self._most_bytes else "are left of what one program may save"
            raise ValueError(f"it has {status.st_size} bytes; {most} {whose}")
        return data


class Program:
    """The running program and all that it started."""

    def __init__(self, folder: Path, limits: dict[str, Any]) -> None:
        self._limits = limits
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-B", "-u", "-X", "utf8", folder / "program.py"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder / "work",
            env=_environment(folder / "work"),
            start_new_session=True,
            preexec_fn=self._limit,  # noqa: PLW1509 - this process has one thread
        )
        self.exit_code: int | None = None
        self.stdout = Output(limits["output_bytes"])
        self.stderr = Output(limits["output_bytes"])

    def watch(self) -> str | None:
        """Wait for its end; returns the limit that it broke, or 'cancelled' when nobody waits for it."""
        give_up_at = time.monotonic() + self._limits["wall_seconds"]
        with selectors.DefaultSelector() as selector:
            selector.register(_STDIN, selectors.EVENT_READ)
            selector.register(_fd(self._process.stdout), selectors.EVENT_READ, self.stdout)
            selector.register(_fd(self._process.stderr), selectors.EVENT_READ, self.stderr)
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
            os.killpg(self._process.pid, signal.SIGKILL)  # all at once, before one can start another
        give_up_at = time.monotonic() + END_SECONDS
        # Those that left the group are killed one by one. No pause: they would use it to multiply.
        while self._bury() and time.monotonic() < give_up_at:
            for pid in _below(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        for stream, output in ((self._process.stdout, self.stdout), (self._process.stderr, self.stderr)):
            _drain(_fd(stream), output)
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
            if pid == self._process.pid:
                self.exit_code = self._process.returncode = os.waitstatus_to_exitcode(status)

    def _is_crowded(self) -> bool:
        limit: int = self._limits["processes"]
        return len(list(islice(_below(os.getpid()), limit + 1))) > limit

    def _limit(self) -> None:
        """Runs in the child, before the program."""
        limits = self._limits
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.nice(19)  # or a fork bomb outruns us, who must count it
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory_mb"] * MB,) * 2)
        # The soft limit's signal tells us why; the hard one ends a program that ignores it.
        resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_seconds"], limits["cpu_seconds"] + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_mb"] * MB,) * 2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        resource.setrlimit(resource.RLIMIT_NPROC, _lowered(resource.RLIMIT_NPROC, USER_PROCESSES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def _spent_its_time(self) -> bool:
        if self.exit_code == -signal.SIGXCPU:
            return True
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return self.exit_code == -signal.SIGKILL and used.ru_utime + used.ru_stime > self._limits["cpu_seconds"]


def main() -> None:
    """Take the job, run it, answer."""
    job = json.loads(sys.stdin.buffer.readline())
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the program starts and leaves behind becomes our child
    with TemporaryDirectory(prefix="run_python-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _fill(folder, job)
        work = os.open(folder / "work", os.O_RDONLY | os.O_DIRECTORY)  # before somebody can put a link in its place
        started_at = time.monotonic()
        program = Program(folder, job["limits"])
        saved = Saved(job["limits"], job["most_bytes"])
        try:
            broken_limit = program.watch()
        finally:
            are_dead = program.end()
        if are_dead and broken_limit is None:
            saved.collect(work)
        answer = {
            "exit_code": program.exit_code,
            "broken_limit": broken_limit,
            "stdout": program.stdout.text(name),
            "stderr": program.stderr.text(name),
            "seconds": round(time.monotonic() - started_at, 3),
            "files": saved.files,
            "left_out": saved.left_out,
        }
    if broken_limit != "cancelled":
        sys.stdout.write(json.dumps(answer))


def _fill(folder: Path, job: dict[str, Any]) -> None:
    """The program stands outside its working folder, so that no file can have its name."""
    (folder / "program.py").write_text(job["code"], "utf-8")
    (folder / "work" / OUTPUT).mkdir(parents=True)
    for name, data in job["files"].items():
        (folder / "work" / name).write_bytes(base64.b64decode(data))


def _environment(work: Path) -> dict[str, str]:
    """All that the program knows of its surroundings. It may import modules that lie among its files."""
    return {"HOME": str(work), "TMPDIR": str(work), "PYTHONPATH": str(work), "PATH": os.defpath, "LANG": "C.UTF-8"}


def _below(pid: int) -> Iterator[int]:
    """Every process that descends from `pid`, each before its children; none where there is no /proc."""
    waiting = [pid]
    while waiting:
        with contextlib.suppress(OSError):  # it has just ended
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                for child in map(int, (task / "children").read_text().split()):
                    yield child
                    waiting.append(child)


def _lowered(kind: int, limit: int) -> tuple[int, int]:
    hard = resource.getrlimit(kind)[1]
    lowered = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    return lowered, lowered


def _drain(fd: int, output: Output) -> None:
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        while data := os.read(fd, 65536):
            output.add(data)


def _fd(stream: Any) -> int:
    return int(stream.fileno())


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    main()
