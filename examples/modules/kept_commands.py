"""Commands that run in the background under a keeper (`keeper.py`), seen from the module that starts them.

All that is known of a command lies in its folder, so that a module that was killed finds it again. A lock, which the kernel
gives back when the keeper dies, says whether it lives: process ids are used again, locks are not.
"""

import codecs
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

MARK = "TOOLFLEET_COMMAND"
"""In the environment of a command and of what it starts: by it, what a killed keeper has left behind is found."""

_LOCK_TRIES = 20
_LOCK_PAUSE_SECONDS = 0.01
_KILL_ROUNDS = 20
_KEEPER = Path(__file__).with_name("keeper.py")

State = Literal["waiting", "running", "ended"]
Why = Literal["ended", "cancelled", "timed_out", "processes", "not_started", "failed", "lost"]


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """What a command in a sandbox sees, beside the system's programs: files and folders, at their own places.

    `owner` is a name: what bears the same has the same user id, if root starts it. `memory_disk_mb` is for /tmp and the like.
    """

    owner: str
    readable: list[str]
    writable: list[str]
    network: bool = False
    memory_disk_mb: int = 64


@dataclass(frozen=True, slots=True)
class Job:
    """What a keeper is told. `stdin` is a file; with `end_with_parent` the command ends when the module does.

    With a `sandbox` the command runs in one or not at all.
    """

    argv: list[str]
    cwd: str
    env: Mapping[str, str]
    timeout_seconds: float | None
    log_bytes: int
    processes: int
    file_bytes: int
    memory_bytes: int | None = None
    stdin: str | None = None
    grace_seconds: float = 5.0
    nice: int = 5
    end_with_parent: bool = False
    sandbox: SandboxPlan | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended. `lost`: its keeper was killed, and nobody knows what it had done by then."""

    why: Why
    exit_code: int | None
    ended_at: float
    note: str = ""
    """What who cancelled it has noted."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of what a command printed. `skipped` bytes before `text` are no longer kept; go on at `next_offset`."""

    offset: int
    text: str
    next_offset: int
    skipped: int
    total: int


class KeptCommand:
    """One command, by its folder, which only this class and the keeper write to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, job: Job, gate: socket.socket | None = None) -> "subprocess.Popen[bytes] | None":
        """Start the keeper; `None` if the command runs, or has ever been started. Nobody starts it twice.

        `gate` is the end of a `Gate` that belongs into the command's sandbox.
        """
        with self._locked() as lock:
            if lock is None or self._has("end.json") or self._has("started.json"):
                return None
            path = self.folder / "job.json"
            env = {**job.env, MARK: self.folder.name}
            passed = {"lock": lock} if gate is None else {"lock": lock, "gate": gate.fileno()}
            path.write_text(json.dumps({**asdict(job), "env": env, "gate": None, **passed}), "utf-8")
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER), str(path)],
                stdin=subprocess.PIPE if job.end_with_parent else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath},  # no more of ours: our environment may hold secrets
                pass_fds=tuple(passed.values()),  # the lock is the keeper's from now on
                start_new_session=True,
            )

    def state(self) -> State:
        """Where it stands. What a killed keeper left behind is ended, and the command is `lost`."""
        if self._has("end.json"):
            return "ended"
        with self._locked(fcntl.LOCK_SH) as lock:  # shared: two who look are not taken for keepers
            # The keeper writes its files before it gives back the lock.
            if lock is not None and self._has("end.json"):
                return "ended"
            if lock is not None and not self._has("started.json"):
                return "waiting"
        with self._locked() as lock:
            if lock is None:
                return "running"
            if not self._has("end.json"):
                self._bury()
        return "ended"

    def cancel(self, note: str = "") -> None:
        """Ask for its end; the first one's note counts. One that has not been started never will be."""
        with contextlib.suppress(FileExistsError), (self.folder / "cancel").open("x", encoding="utf-8") as file:
            file.write(note)
        # One that just looks may have the lock; should it be kept for longer, the keeper sees the file.
        with self._locked(tries=_LOCK_TRIES) as lock:
            if lock is not None and not self._has("started.json") and not self._has("end.json"):
                self._end("cancelled")

    def give_up(self) -> None:
        """Note that it cannot be started, unless it was. Raises `OSError` if not even that can be noted."""
        with self._locked(tries=_LOCK_TRIES) as lock:
            if lock is not None and not self._has("started.json") and not self._has("end.json"):
                self._end("not_started")

    def ending(self) -> Ending | None:
        """How it ended, `None` before."""
        known = self._read("end.json")
        if known is None:
            return None
        cancel = self.folder / "cancel"
        note = cancel.read_text("utf-8") if known["why"] == "cancelled" and cancel.exists() else ""
        return Ending(known["why"], known["exit_code"], known["ended_at"], note)

    def started_at(self) -> float | None:
        """When it was started, in seconds of the epoch."""
        known = self._read("started.json")
        return None if known is None else float(known["started_at"])

    def log(self, offset: int, limit: int) -> LogPart:
        """What it printed from `offset` on, `limit` bytes at most. A negative `offset` counts from the end."""
        pieces = self._pieces()
        total = pieces[-1][0] + pieces[-1][1] if pieces else 0
        begin = position = min(offset if offset >= 0 else max(0, total + offset), total)
        text, skipped = bytearray(), 0
        for start, size, path in pieces:
            if position < start and not text:  # what lay before is gone
                skipped, position = start - begin, start
            if start <= position < start + size and len(text) < limit:
                with contextlib.suppress(FileNotFoundError), path.open("rb") as piece:
                    piece.seek(position - start)
                    text += piece.read(limit - len(text))
                    position = begin + skipped + len(text)
        half = _half_character(text)
        whole = bytes(text[: len(text) - half])
        return LogPart(begin, whole.decode("utf-8", "replace"), position - half, skipped, total)

    def _pieces(self) -> list[tuple[int, int, Path]]:
        pieces: list[tuple[int, int, Path]] = []
        with contextlib.suppress(FileNotFoundError):
            for path in sorted((self.folder / "log").iterdir()):
                with contextlib.suppress(FileNotFoundError):  # the keeper has just removed it
                    pieces.append((int(path.name), path.stat().st_size, path))
        return pieces

    def _bury(self) -> None:
        running = self._read("running.json") or {}
        _kill_left(self.folder.name, running.get("pid"), running.get("start"))
        self._end("lost")

    def _end(self, why: Why) -> None:
        draft = self.folder / "end.draft"
        draft.write_text(json.dumps({"why": why, "exit_code": None, "ended_at": time.time()}), "utf-8")
        draft.replace(self.folder / "end.json")

    def _has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            known: dict[str, Any] = json.loads((self.folder / name).read_text("utf-8"))
        except FileNotFoundError:
            return None
        return known

    @contextmanager
    def _locked(self, kind: int = fcntl.LOCK_EX, *, tries: int = 1) -> Generator[int | None]:
        """The lock's descriptor; `None` if somebody has it: the keeper, or for a moment one who looks."""
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield lock if _lock(lock, kind | fcntl.LOCK_NB, tries) else None
        finally:
            os.close(lock)


def _lock(lock: int, operation: int, tries: int) -> bool:
    for left in reversed(range(tries)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, operation)
            return True
        time.sleep(_LOCK_PAUSE_SECONDS if left else 0)
    return False


def _half_character(text: bytearray) -> int:
    """How many bytes at the end are the beginning of a character whose rest comes with the next part."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(bytes(text[-4:]))
    half = len(decoder.getstate()[0])
    return half if half < len(text) else 0


def _kill_left(name: str, pid: int | None, start: str | None) -> None:
    """Kill what bears the command's mark, and its group if the pid is still the command's. Only where there is a /proc."""
    if pid is not None and start is not None and _start_of(pid) == start:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    mark = f"{MARK}={name}".encode()
    for _ in range(_KILL_ROUNDS):  # until there is none: they may multiply
        marked = [process for process in Path("/proc").glob("[0-9]*") if _has_mark(process, mark)]
        for process in marked:
            with contextlib.suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)
        if not marked:
            return


def _has_mark(process: Path, mark: bytes) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or is another user's; that of a zombie is empty
        return mark in (process / "environ").read_bytes().split(b"\0")
    return False


def _start_of(pid: int) -> str | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None
