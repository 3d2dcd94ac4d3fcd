"""A real Redis server whose clock is the bed's, by libfaketime."""

import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from redis import Redis

from bed import clock, settling, sockets
from toolfleet_cli.local.redis_server import LOOPBACK, bundled_redis_server, free_port, redis_url

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1  # prctl(2)
_PING, _PONG = b"PING\r\n", b"+PONG\r\n"
_ROUNDS = 20  # for what has waited meanwhile
_START_SECONDS = "3"
"""Debian's server hangs at its start under libfaketime: its memory allocator asks for the time. Such a one is passed over."""


class VirtualRedis:
    """A server of the bed's own, with its data in memory. `options` are given to it beside the usual ones.

    `expires_actively`: whether it also deletes what nobody asks for, which it does in real time.
    """

    def __init__(self, folder: Path, *options: str, expires_actively: bool = True) -> None:
        self.folder, self._options, self._expires_actively = folder, options, expires_actively
        self.is_frozen = False
        self._waiting_rounds = 0  # that what came while it was frozen takes
        self.port = free_port()
        self.start()
        settling.servers[self.port] = self.settle

    def start(self, *options: str) -> None:
        """Start it with these options beside the usual ones."""
        binary, library = find_server()
        self._process = _started(binary, library, self.folder, self.port, *self._options, *options)
        assert _is_ready(self._process), "Redis takes no connections"
        self._connect()
        self.settle()
        self.url = redis_url(self.port)
        with self.client() as client:
            client.config_set("loglevel", "warning")  # its log is a pipe that is not read any more
            if not self._expires_actively:
                client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        self.settle()  # the client has gone, so that the next one takes its place in memory

    def restart(self) -> None:
        """Kill it, and start it again with all its data. Every connection ends."""
        with self.client() as client:
            client.save()
        self._pings.close()
        _end(self._process)
        self.start()

    @property
    def written_bytes(self) -> int:
        """How much it has written to its append-only file so far. Needs `--appendonly yes`."""
        settling.settle()
        return self._file().stat().st_size

    def forget(self, since: int) -> bytes:
        """Kill it, and start it without what it has written to its file since that many bytes. Returns that part.

        Every connection ends. A command, or a transaction, that was cut in two is forgotten whole.
        """
        settling.settle()
        self._pings.close()
        _end(self._process)
        written = self._file().read_bytes()
        self._file().write_bytes(written[:since])
        self.start()
        return written[since:]

    def _file(self) -> Path:
        (path,) = (
            each for each in self.folder.rglob("*.aof") if ".base." not in each.name
        )  # one of Redis 6, and two since
        return path

    def client(self) -> Redis:
        """Return a client that blocks, for the test's own questions."""
        return Redis(port=self.port, decode_responses=True)

    def settle(self, rounds: int = 2) -> None:
        """Return when it has answered so many questions, one after the other."""
        if self.is_frozen:
            self._waiting_rounds += rounds
            return
        while not all(self._answers() for _ in range(rounds)):
            self._pings.close()  # a test has had it close all connections
            self._connect()

    def _answers(self) -> bool:
        """Ask, and return once it has answered; `False` if the connection is closed."""
        left = len(_PONG)
        with suppress(OSError):
            sockets.real_sendall(self._pings, _PING)
            while left and (answered := sockets.real_recv(self._pings, left)):
                left -= len(answered)
        return not left

    def _connect(self) -> None:
        self._pings = socket.socket()
        sockets.real_connect(self._pings, (LOOPBACK, self.port))
        self._pings.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def freeze(self) -> None:
        """Stop it, as SIGSTOP does: its connections stay, and it answers nothing."""
        if self.is_frozen:
            return
        settling.settle()
        self._wait_until_idle()
        self.is_frozen = True
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)  # now it has stopped

    def _wait_until_idle(self) -> None:
        """Return when it waits for questions.

        One that is stopped between its last answer and that takes the questions first when it goes on, and then looks which
        clients' waits are over; one that has waited does so the other way round.
        """
        status = Path(f"/proc/{self._process.pid}/stat")
        while status.is_file() and not status.read_text().rpartition(") ")[2].startswith("S"):
            os.sched_yield()

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)
        self.is_frozen = False
        self.settle(_ROUNDS + self._waiting_rounds)
        self._waiting_rounds = 0

    def close(self) -> None:
        """End it."""
        del settling.servers[self.port]
        self._pings.close()
        _end(self._process)


@cache
def find_server() -> tuple[Path, Path]:
    """Return a server that starts under libfaketime, the wheel's or that on PATH, and the library."""
    library = _library()
    if library is None:
        raise _missing("libfaketime is not installed: neither its wheel nor the system's package is there")
    found = [bundled_redis_server(), *(shutil.which(name) for name in ("redis-server", "valkey-server"))]
    for binary in [Path(each) for each in found if each]:
        folder = Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp", f"bed-{os.getpid()}")
        folder.mkdir(exist_ok=True)
        process = _started(binary, library, folder, free_port())
        try:
            if _is_ready(process):
                return binary, library
        finally:
            _end(process)
            shutil.rmtree(folder)
    raise _missing(f"no Redis server starts under libfaketime: {found}")


def _missing(reason: str) -> BaseException:
    """Return what ends a test that cannot run: where everything is to be there, as in CI, it fails."""
    kind = pytest.fail.Exception if os.environ.get("CI") else pytest.skip.Exception
    return kind(f"{reason}. NOTHING THAT NEEDS VIRTUAL TIME CAN BE TESTED.")


def _library() -> Path | None:
    spec = importlib.util.find_spec("libfaketime")
    folders = (
        [] if spec is None or spec.origin is None else [Path(spec.origin).parent / "vendor" / "libfaketime" / "src"]
    )
    system = ("/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib64/faketime")
    for folder in [*folders, *map(Path, system), Path("/usr/lib/faketime"), Path("/usr/local/lib/faketime")]:
        if (path := folder / "libfaketime.so.1").is_file():
            return path
    return None


def _started(binary: Path, library: Path, folder: Path, port: int, *options: str) -> "subprocess.Popen[bytes]":
    usual = {
        "bind": LOOPBACK,
        "port": str(port),
        "dir": str(folder),
        "appendonly": "no",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    words = [word for name, value in usual.items() for word in (f"--{name}", value)]
    env = {**os.environ, **clock.shown_in(folder), "LD_PRELOAD": str(library)}
    return subprocess.Popen(
        [str(binary), *words, *options],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - the bed's threads are greenlets
    )


def _die_with_parent() -> None:
    """Have the kernel end this process, also a frozen one, with the one that has started it, however that ends."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _is_ready(process: "subprocess.Popen[bytes]") -> bool:
    """Return whether a server that has been started takes connections, once it does.

    Another process waits: trials of our own would be another number each time, and leave other places in memory free.
    """
    waiting = ["timeout", _START_SECONDS, "grep", "-q", "Ready to accept connections"]
    return subprocess.run(waiting, stdin=process.stdout, check=False).returncode == 0


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
    for name in ("faketime_shm", "sem.faketime_sem"):  # what libfaketime leaves of a killed one
        Path("/dev/shm", f"{name}_{process.pid}").unlink(missing_ok=True)
