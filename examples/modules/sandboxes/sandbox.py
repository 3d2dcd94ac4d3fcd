"""Starts a program in namespaces of its own: it sees no process, no network, no file but what `view.py` lists.

Three processes stand between who starts it and the program. The first makes the namespaces, the second is process 1 in them:
it builds the program's view of the machine, gives up every privilege for good, starts the program, and tells how it ended.
With process 1 the kernel ends all others of the namespace, whatever they do, and with who started it, process 1.

Started by root, the program belongs to a user id without rights outside.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from modules.sandboxes import linux
from modules.sandboxes.view import USER, View, build_view

HANDSHAKE_SECONDS = 10
PROCESSES = 2  # between who starts it and the program
_STARTED = b"started"


class Inside(NamedTuple):
    """What is started: `exec` never returns, and raises `OSError` if there is no such program.

    `outside` is its user id there, if root starts it. `stdin` is an open file; by default there is nothing to read. With
    `one_stream` both its streams are one. Through `gate` who has the other end gets sockets of its network (`gate.py`).
    """

    view: View
    exec: Callable[[], NoReturn]
    outside: int
    stdin: int | None = None
    one_stream: bool = False
    gate: socket.socket | None = None


class ProgramMissing(Exception):
    """The sandbox stands, and the program cannot be started in it."""


class Sandbox:
    """A program in its sandbox, seen from who starts it.

    Raises `RuntimeError` where there can be no sandbox, `ProgramMissing` where it has nothing to run.
    """

    def __init__(self, inside: Inside) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdout = os.pipe()
        stderr = stdout if inside.one_stream else os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _Outer(inside, theirs, stdout[1], stderr[1]).run()
        theirs.close()
        for writing in {stdout[1], stderr[1]}:
            os.close(writing)
        ours.settimeout(HANDSHAKE_SECONDS)
        self._line = ours
        self.stdout, self.stderr = stdout[0], stderr[0]
        self.work: int | None = None
        self.tmp: int | None = None
        self.others: frozenset[str] = frozenset()
        """What lies in /tmp and is not the program's: the way to the interpreter, if that is there."""
        try:
            self._shake_hands(inside.outside)
        except BaseException:
            self._give_up()
            raise

    def _shake_hands(self, outside: int) -> None:
        self._expect(b"namespaces")
        _map_user(self.pid, outside)
        self._line.sendall(b"mapped")
        word, descriptors, _, _ = socket.recv_fds(self._line, 1000, 2)
        if descriptors:
            self.work, self.tmp = descriptors
            with os.scandir(self.tmp) as entries:
                self.others = frozenset(entry.name for entry in entries)
        if word != b"ready":
            raise RuntimeError(f"no sandbox: {_text(word)}")
        self._line.sendall(b"start!")
        if (word := self._line.recv(1000)) != _STARTED:
            raise ProgramMissing(_text(word))

    def exit_code(self, _status: int) -> int:
        """The program's, once the sandbox has ended; that of being killed, if it was killed with its sandbox."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._line.recv(64))
        return -signal.SIGKILL

    def close(self) -> None:
        """Let go of its files, the last that is left of it."""
        for folder in (self.work, self.tmp):
            if folder is not None:
                os.close(folder)
        self._line.close()

    def _expect(self, expected: bytes) -> None:
        word = self._line.recv(1000)
        if word != expected:
            raise RuntimeError(f"no sandbox: {_text(word)}")

    def _give_up(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        for stream in {self.stdout, self.stderr}:
            os.close(stream)


class _Outer:
    """The process that makes the namespaces, and waits in them for process 1."""

    def __init__(self, inside: Inside, line: socket.socket, stdout: int, stderr: int) -> None:
        self._inside = inside
        self._line = line
        self._streams = stdout, stderr

    def run(self) -> NoReturn:
        try:
            self._run()
        except BaseException as exc:  # noqa: BLE001 - this process has no other way to say it
            with contextlib.suppress(OSError):
                self._line.sendall(f"{type(exc).__name__}: {exc}".encode()[:900])
        os._exit(1)

    def _run(self) -> NoReturn:
        os.setsid()
        linux.be_killed_first()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_DFL)  # process 1 gets from inside only signals that it handles
        signal.set_wakeup_fd(-1)
        if os.geteuid() == 0:
            os.setgroups([])
        kinds = linux.NEW_USERS | linux.NEW_MOUNTS | linux.NEW_PROCESSES | linux.NEW_IPC | linux.NEW_HOST_NAME
        linux.unshare(kinds | (0 if self._inside.view.network else linux.NEW_NETWORK))
        linux.die_with_parent()
        self._line.sendall(b"namespaces")
        if self._line.recv(6) != b"mapped":
            os._exit(1)
        if (first := os.fork()) == 0:
            self._process_1()
        os.waitpid(first, 0)
        os._exit(0)

    def _process_1(self) -> NoReturn:
        os.umask(0o022)
        kept = build_view(self._inside.view)
        socket.sethostname("program")
        linux.drop_capabilities()
        linux.hide_memory()
        linux.die_with_parent()
        socket.send_fds(self._line, [b"ready"], kept)
        if self._line.recv(6) != b"start!":  # whoever would watch the program is gone
            os._exit(1)
        program = self._start()
        if self._inside.gate is not None:
            threading.Thread(target=_serve, args=(self._inside.gate,), daemon=True).start()
        while True:
            pid, status = os.wait()
            if pid == program:
                self._line.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                os._exit(0)

    def _start(self) -> int:
        """Start the program, and tell whether that went well: what closes without a word has been replaced by it."""
        reading, writing = os.pipe()
        if (program := os.fork()) == 0:
            self._program(writing)
        os.close(writing)
        if fault := os.read(reading, 900):
            self._line.sendall(fault)
            os._exit(1)
        os.close(reading)
        self._line.sendall(_STARTED)
        return program

    def _program(self, told: int) -> NoReturn:
        try:
            linux.die_with_parent()
            os.setsid()
            stdin = os.open("/dev/null", os.O_RDONLY) if self._inside.stdin is None else self._inside.stdin
            for source, target in ((stdin, 0), (self._streams[0], 1), (self._streams[1], 2)):
                os.dup2(source, target)
            self._inside.exec()
        except BaseException as exc:  # noqa: BLE001 - nothing of ours may go on here
            os.write(told, f"{type(exc).__name__}: {exc}".encode()[:900])
        os._exit(127)


def _serve(gate: socket.socket) -> None:
    """Give a socket of this network for each byte. A socket belongs to the network that it was made in, whoever has it."""
    with contextlib.suppress(OSError):
        while gate.recv(1):
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as fresh:
                socket.send_fds(gate, [b"s"], [fresh.fileno()])


def _map_user(pid: int, outside: int) -> None:
    """Say who the program's user is outside. Only its parent's namespace may."""
    user, group = (outside, outside) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    for name, content in (("setgroups", "deny"), ("uid_map", f"{USER} {user} 1"), ("gid_map", f"{USER} {group} 1")):
        Path(f"/proc/{pid}/{name}").write_text(content)


def _text(word: bytes) -> str:
    return word.decode("utf-8", "replace") or "it ended"
