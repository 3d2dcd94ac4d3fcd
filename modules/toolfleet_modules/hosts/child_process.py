"""Starts child processes, which end with their parent in any case, and ends them with all that they have started.

`spawn` and `stop` are for a parent without an event loop. `ChildProcess` is for a host: a program behind a fence, which
says what the program inherits and how much it may use. Its temporary folder is removed with its owner: by the owner, or,
if the owner was killed, by the next host that starts.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Self

from toolfleet_modules.hosts import guard
from toolfleet_modules.hosts.guard import HIDE, LIMITED, OWN, READ, WORK, end_with_parent, stand_back

Isolation = Literal["none", "bwrap"]

USER_VARIABLE = "TOOLFLEET_HOST_USER"
"""The user that the programs of a host run as, by its number: `toolfleet up` chooses one, and tells the host."""

_TEMPORARY = "/tmp"  # noqa: S108 - of which a process has one of its own
# What programs need of the system: none of it is a fleet's.
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/sys/devices/system/cpu"),
    *(f"/etc/{name}" for name in ("alternatives", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")),
    *(f"/etc/{name}" for name in ("localtime", "mime.types", "nsswitch.conf", "passwd", "pki/tls/certs", "ssl/certs")),
)
_INHERITED = ("LANG", "LC_ALL", "LC_CTYPE", "PATH", "TZ")

# Folders of this name have a lock, which their owner has as long as it lives: no other process may take it for dead.
_PREFIX = "toolfleet-own-"

PATIENCE_SECONDS = 5.0
"""How long orphans have to end by default. Not a worker's drain time: its Redis is going away as well."""

_MARK = "TOOLFLEET_SERVER"  # a variable that all that a guarded program starts inherits
_LEAVE_SECONDS = 1.0  # for a guarded program to end by itself when its input does
_END_SECONDS = 6.0  # for what it has started to be gone
_OWN_END_SECONDS = 2.0  # for a process of our own code to end by itself
_CHECK_SECONDS = 0.01  # between two looks whether a process has ended, while that is awaited
_ENDED_SECONDS = 0.1  # and in its life
_LOCK_CHECK_SECONDS = 0.05


class FenceMissing(Exception):
    """The machine lacks what the fence needs. The message says what."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The limits of a process.

    `memory_bytes`: of addresses, `cpu_seconds`: in its whole life, `open_files`, `processes`: of its user's, all;
    `None` for no limit.

    `nice`: its CPU priority, from 0 to 19; a host with a higher one passes that on. `variables`: its environment in
    addition to the machine's language, time zone and `PATH`. `user`: the user that it runs as, if the host is root's.
    It works in the `writable` folders as their owner does, reads the `readable` ones, and does not see the `private`
    ones. With bubblewrap it reads all of these and changes none.
    """

    memory_bytes: int | None = 4 * 2**30
    cpu_seconds: int | None = None
    open_files: int | None = 1024
    processes: int | None = None
    nice: int = 0
    isolation: Isolation = "none"
    user: int | None = None
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    private: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the whole environment of a process with this own folder."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        own = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**inherited, **own, **self.variables}

    def command(self, command: list[str], folder: Path) -> list[str]:
        """Return the command to start. Raises `FenceMissing` if the machine has no bubblewrap."""
        if self.isolation == "none":
            return command
        program = shutil.which("bwrap")
        if program is None:
            raise FenceMissing('isolation = "bwrap" needs bubblewrap, which is not installed here.')
        apart = ["--unshare-all", "--die-with-parent", "--new-session"]
        system = [word for path in _SYSTEM for word in ("--ro-bind-try", path, path)]
        files = ["--dev", "/dev", "--proc", "/proc", "--tmpfs", _TEMPORARY]
        self._make_readable()
        needed = {*self.writable, *self.readable, *_python_paths()}
        shown = sorted({real for path in needed for each in self._shown(path) for real in (each, each.resolve())})
        files += [word for path in shown for word in ("--ro-bind-try", str(path), str(path))]
        own = ["--bind", str(folder), str(folder), "--chdir", str(folder)]
        return [program, *apart, *system, *files, *own, "--", *command]

    def _make_readable(self) -> None:
        """Make folders that are not there yet: what comes into them later is seen then."""
        for path in self.readable:
            with contextlib.suppress(OSError):
                path.mkdir(parents=True, exist_ok=True)

    def _shown(self, path: Path) -> list[Path]:
        """Return the parts of a path without private ones. New files of a folder that has a private part are not seen."""
        private = {form for each in self.private for form in (each, each.resolve())}
        if path in private:
            return []
        if not any(each.is_relative_to(path) for each in private) or not path.is_dir():
            return [path]
        return [part for each in path.iterdir() for part in self._shown(each)]

    def paths(self, folder: Path) -> list[str]:
        """Return the arguments of `enclose` for a process that works in this folder."""
        if self.user is None:
            return []
        self._make_readable()
        kinds = {WORK: self.writable, READ: (*self.readable, *_python_paths()), HIDE: self.private}
        return [f"{OWN}{folder}", *(f"{kind}{path}" for kind, found in kinds.items() for path in found)]

    def limits(self) -> dict[str, int | None]:
        """Return the arguments of `enclose`, as JSON."""
        return {name: getattr(self, name) for name in (*LIMITED, "nice", "user")}

    def lower_priority(self, process: int) -> None:
        """Have a process that was just started stand back as soon as that, not when it encloses itself: its interpreter's start costs most."""
        with contextlib.suppress(OSError):  # it has ended
            stand_back(process, self.nice)


def _python_paths() -> list[Path]:
    """Return the folders of this Python and of the packages that it imports."""
    found = {Path(each).absolute() for each in (sys.prefix, sys.base_prefix, *sys.path) if each}
    return sorted(each for each in found if each.exists() and each != Path.cwd())


class OwnFolder:
    """A folder of this process's at `path`. Its owner calls `remove`."""

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls) -> Self:
        """Make one. Raises `OSError`."""
        while True:
            path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                lock = _locked(path)
            except OSError:
                if path.is_dir():  # there are no locks here, so that no other process gets one either
                    return cls(path, None)
                continue
            if lock is not None and path.is_dir():
                return cls(path, lock)
            if lock is not None:  # it was taken for one that was left, in between
                os.close(lock)

    def remove(self) -> None:
        """Remove it with all that is in it, as far as that can be done."""
        lock, self._lock = self._lock, None
        shutil.rmtree(self.path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_abandoned() -> None:
    """Remove the folders of dead owners: this user's, for root all. Raises nothing."""
    for path in _folders():
        with contextlib.suppress(OSError):
            lock = _locked(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def remove_abandoned_soon() -> None:
    """Remove them in the background: there may be many."""
    threading.Thread(target=remove_abandoned, name="toolfleet-leftovers", daemon=True).start()


def _folders() -> list[Path]:
    with contextlib.suppress(OSError):
        return list(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))
    return []


def _locked(path: Path) -> int | None:
    """Return the lock of a folder, which ends when it is closed; `None` if another process has it. Raises `OSError`."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.geteuid() not in {0, os.fstat(lock).st_uid}:  # root's may be another user's meanwhile
            raise PermissionError(path)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        raise
    return lock


async def take_lock(descriptor: int, *, seconds: float) -> None:
    """Lock an open file, which no other process has locked then. Raises `TimeoutError` if one has it for so long."""
    async with asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            await asyncio.sleep(_LOCK_CHECK_SECONDS)


def spawn(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    output: IO[bytes] | int | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, so that Ctrl-C reaches only us and we can stop children in order.

    On Linux the kernel sends it SIGTERM when the calling *thread* ends: call it from the main thread. `env` is
    added to our own environment; `output` takes both of its streams; it inherits `pass_fds`.
    """
    return subprocess.Popen(
        [str(word) for word in argv],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=_end_with_parent(os.getpid()) if sys.platform == "linux" else None,  # noqa: PLW1509 - two system calls
    )


def stop(process: subprocess.Popen[bytes], *, patience_seconds: float) -> int:
    """Ask the child to end, and after `patience_seconds` make it end, with all it started. Returns its exit code."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_seconds)
    guard.signal_group(process.pid, signal.SIGKILL)
    return process.wait()


def _end_with_parent(parent: int) -> Callable[[], None]:
    def run_in_child() -> None:
        end_with_parent(signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the line above: the signal will not be sent any more
            os._exit(1)

    return run_in_child


class OrphanReaper:
    """A process that ends our children, and theirs, when we are gone without having done so.

    The kernel tells children of a killed parent to end (see `spawn`), but only on Linux, not their own children, and
    does not insist when one of them does not. This process reads from a pipe that only we hold open: its end is ours.
    If it is killed itself, all works as before, without a clean-up after our end.
    """

    def __init__(self, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        theirs, self._pipe = os.pipe()
        self._process = subprocess.Popen(
            guard.reap_command(patience_seconds),
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            env={"PATH": os.defpath},  # ours may hold keys
            start_new_session=True,
        )
        os.close(theirs)

    @property
    def pid(self) -> int:
        """The process id of the reaper."""
        return self._process.pid

    def watch(self, pid: int) -> None:
        """End the process group of this child if we are gone before we `release` it."""
        self._tell(f"+{pid}")

    def release(self, pid: int) -> None:
        """Stop watching a child that has ended with all that it started."""
        self._tell(f"-{pid}")

    def close(self) -> None:
        """Let it go; it ends what it still watches. Waits for it."""
        os.close(self._pipe)
        self._process.wait()

    def _tell(self, word: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, f"{word}\n".encode())


class ChildProcess:
    """A program behind a fence, with a folder and a session of its own, in the running loop. Its owner calls `end`.

    One that runs our code encloses itself, and ends with its group. Any other has a guard in between, which encloses
    it, and ends what it has started in sessions of their own, too.
    """

    def __init__(self, process: asyncio.subprocess.Process, folder: OwnFolder, *, is_guarded: bool) -> None:
        self._process = process
        self._folder = folder
        self._is_guarded = is_guarded

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        fence: Fence,
        *,
        is_guarded: bool,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        **streams: Any,
    ) -> Self:
        """Start one; without a guard, it gets the arguments of `enclose` in addition. `streams` are asyncio's.

        Raises `OSError` where the machine has no room, and `FenceMissing`.
        """
        folder = OwnFolder.make()
        process = None
        try:
            limits, paths = fence.limits(), fence.paths(folder.path)
            if is_guarded:
                words = guard.run_command(os.getpid(), limits, paths, fence.command([*command], folder.path))
            else:
                words = fence.command([*command, json.dumps(limits), *paths], folder.path)
            mark = {_MARK: folder.path.name} if is_guarded else {}
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *words,
                    env={**fence.environment(folder.path), **(environment or {}), **mark},
                    cwd=folder.path if directory is None else directory,
                    start_new_session=True,
                    **streams,
                )
            )
            try:
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                process = await starting
                raise
            fence.lower_priority(process.pid)
            return cls(process, folder, is_guarded=is_guarded)
        except BaseException:
            if process is None:
                folder.remove()
            else:
                child = cls(process, folder, is_guarded=is_guarded)
                if not is_guarded:  # nothing has told it to end by itself
                    child.kill()
                await child.end()
            raise

    @property
    def pid(self) -> int:
        """The process id of the program, or of its guard; also the id of its group."""
        return self._process.pid

    @property
    def streams(self) -> asyncio.subprocess.Process:
        """The process with the pipes that were asked for."""
        return self._process

    async def exit_code(self, *, poll_seconds: float = _ENDED_SECONDS) -> int:
        """Wait for its end; its code, or less than 0 for a signal. Another process may still have its pipes."""
        if self._process.stdout is None:
            return await self._process.wait()
        while self._process.returncode is None:  # noqa: ASYNC110 - `Process.wait` waits for the pipes as well
            await asyncio.sleep(poll_seconds)
        return self._process.returncode

    def kill(self) -> None:
        """End it and all of its group now."""
        guard.signal_group(self._process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Let it end by itself for a moment, then end it and all that it has started, and remove its folder."""
        ending = asyncio.ensure_future(self._end())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            raise

    async def _end(self) -> None:
        if self._is_guarded:
            await self._end_guarded()
        else:
            await self._is_gone(_OWN_END_SECONDS)
            self.kill()  # or what it has started
            await self._process.wait()
        await asyncio.to_thread(self._folder.remove)

    async def _end_guarded(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not await self._is_gone(_LEAVE_SECONDS):
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            if not await self._is_gone(_END_SECONDS):
                self._signal(signal.SIGKILL)  # the program is ended with it
                await self._is_gone(_END_SECONDS)
        if self._process.returncode != 0:  # its guard may have been killed, and could end nothing
            await asyncio.to_thread(_end_marked, self._folder.path.name)
        transport = getattr(self._process, "_transport", None)
        if transport is not None:  # a process that was left behind may hold the pipes
            transport.close()

    async def _is_gone(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.exit_code(poll_seconds=_CHECK_SECONDS)
        except TimeoutError:
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def _end_marked(mark: str) -> None:
    """Kill what has this mark in its environment, until none is left."""
    sought = f"{_MARK}={mark}".encode()
    give_up_at = time.monotonic() + _END_SECONDS
    while (found := [each for each in Path("/proc").glob("[0-9]*") if _has(each, sought)]) and (
        time.monotonic() < give_up_at
    ):
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)
        time.sleep(_CHECK_SECONDS)


def _has(process: Path, sought: bytes) -> bool:
    try:
        return sought in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


class Backoff:
    """The pause before a restart, in seconds: doubled from `first` to `most`; after a life of `lasting_seconds` it is the first again."""

    def __init__(self, first: float, most: float, *, lasting_seconds: float) -> None:
        self._first, self._most, self._lasting_seconds = first, most, lasting_seconds
        self._next = first

    def pause(self, life_seconds: float) -> float:
        """Return the pause after so long a life; 0 if it did not start."""
        if life_seconds > self._lasting_seconds:
            self._next = self._first
        pause, self._next = self._next, min(self._next * 2, self._most)
        return pause
