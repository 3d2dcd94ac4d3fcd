"""Starts programs whose imports are done: forks of one process that has them, each in all else a process of its own.

What a program imports takes most of the processor time of its start, and tests start hundreds. All processes of a run of
pytest-xdist share the process that has them, which ends with the last of them. Tests of the start itself
(`toolfleet up`, what a command loads) start programs as users do, and so do those whose interpreter has variables of its own.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, Protocol

from support.programs.preloads import preload, program_of
from support.waiting import PATIENCE_SECONDS
from toolfleet_modules.hosts.child_process import _end_with_parent, spawn, stop

_TESTS = Path(__file__).parents[2]
_AT_START = ("PYTHON", "LD_", "FAKETIME")
_LATER = {"PYTHONPATH", "PYTHONUNBUFFERED"}
"""Of the variables with such names an interpreter reads all but these before it runs anything."""
_START_SECONDS = 60
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID")
_VARIABLE = "FORK_SERVERS_OF"
_PREFIX = os.environ.get(_VARIABLE) or f"toolfleet-tests/{_RUN or os.getpid()}/"
"""What the addresses of all servers of a run begin with. A server is told so."""


class _File(Protocol):
    @property
    def name(self) -> str: ...


class Process(Protocol):
    """What tests want of `subprocess.Popen`."""

    pid: int
    returncode: Any

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start(argv: Sequence[str | Path], *, env: Mapping[str, str], output: IO[bytes], cwd: Path | None = None) -> Process:
    """As `spawn`; a program whose imports are listed begins with them done, if it can."""
    words, variables = [str(word) for word in argv], {**os.environ, **env}
    program = _program(words, variables)
    if program is None:
        return spawn(argv, env=env, cwd=cwd, output=output)
    return _server(program).start(words, variables, str(cwd or Path.cwd()), output, output)


def run(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout_seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run such a program to its end, with its streams apart; anew if `env` says where modules are, as that may change imports."""
    variables = {**os.environ, **env}
    program = None if "PYTHONPATH" in env else _program(argv, variables)
    if program is None:
        return subprocess.run(
            argv, cwd=cwd, env=variables, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    with NamedTemporaryFile() as output, NamedTemporaryFile() as errors:
        process = _server(program).start(argv, variables, str(cwd), output, errors)
        try:
            code = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        said = [Path(file.name).read_text() for file in (output, errors)]
    return subprocess.CompletedProcess(argv, code, *said)


def _program(argv: Sequence[str], variables: Mapping[str, str]) -> str | None:
    """Name the program that may begin with its imports done."""
    if sys.platform != "linux" or _early(variables) != _early(os.environ):
        return None
    return program_of(argv)


def end(process: Process, *, patience_seconds: float) -> int:
    """As `stop`."""
    return stop(process, patience_seconds=patience_seconds)  # type: ignore[arg-type] # has all that it asks for


def _address(program: str) -> str:
    """Return where its server listens: in Linux's name space of sockets, where nothing is left in the end."""
    return f"\0{_PREFIX}{program}"


def _early(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_AT_START) and name not in _LATER}


class ForkServer:
    """The process with the imports of one program, as one of its clients sees it, and what it has said of the client's forks."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._ended: dict[int, int] = {}
        self._started: list[int] = []
        self._heard = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = self._connected()
        atexit.register(self.close)

    def _connected(self) -> socket.socket:
        """Return a connection to it; start it, unless it is there."""
        give_up_at, process = time.monotonic() + _START_SECONDS, None
        while True:
            there = socket.socket(socket.AF_UNIX)
            try:
                there.connect(_address(self._program))
            except ConnectionRefusedError:
                there.close()
                assert time.monotonic() < give_up_at, f"no fork server for {self._program}"
                process = process or subprocess.Popen(
                    [sys.executable, __file__, self._program, *(["apart"] if _RUN else [])],
                    env={**os.environ, "PYTHONPATH": str(_TESTS), "PYTHONUNBUFFERED": "1", _VARIABLE: _PREFIX},
                    cwd=Path(__file__).parent,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
                time.sleep(0.005)
            else:
                if process is not None and _RUN:
                    process.wait(_START_SECONDS)  # it has left one that is nobody's child
                    process = None
                self._process = process
                return there

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, output: _File, errors: _File) -> "Fork":
        order = {"argv": list(argv), "env": dict(env), "cwd": cwd, "output": output.name, "errors": errors.name}
        with _lock:
            try:
                return self._started_by(order)
            except ConnectionError:  # its last client has left just as this one came
                self._socket.close()
                self._socket, self._heard = self._connected(), b""
                return self._started_by(order)

    def _started_by(self, order: Mapping[str, Any]) -> "Fork":
        self._socket.setblocking(True)
        self._socket.sendall(json.dumps(order).encode() + b"\n")
        while not self._started:
            self._hear(blocking=True)
        return Fork(self._started.pop(), self)

    def exit_code(self, pid: int) -> int | None:
        """Of one of its forks; None while that runs."""
        with _lock:
            while pid not in self._ended and self._hear(blocking=False):
                pass
            return self._ended.get(pid)

    def _hear(self, *, blocking: bool) -> bool:
        """Take note of what it says next. Whether there was something."""
        self._socket.setblocking(blocking)
        try:
            heard = self._socket.recv(2**16)
        except BlockingIOError:
            return False
        if not heard:
            raise ConnectionError("the fork server has ended")
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            said: dict[str, int] = json.loads(line)
            if "started" in said:
                self._started.append(said["started"])
                self._ended.pop(said["started"], None)  # another process once had this id
            else:
                self._ended[said["ended"]] = said["code"]
        return True

    def close(self) -> None:
        """Leave it. It ends this client's forks, and itself if it has no other client."""
        self._socket.close()
        if self._process is not None:
            self._process.wait(PATIENCE_SECONDS)


class Fork:
    """A fork, as `subprocess.Popen` shows a child."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        give_up_at = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > give_up_at:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(0.005)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_servers: dict[str, ForkServer] = {}
_lock = threading.Lock()
"""Of all that is said to servers and heard from them: a thread must not take what was said to another one."""


def _server(program: str) -> ForkServer:
    with _lock:
        if program not in _servers:
            _servers[program] = ForkServer(program)
        return _servers[program]


class _Client:
    """A process that has its programs forked here: what it has sent, and its forks that run."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.forks = set[int]()

    @property
    def is_ours(self) -> bool:
        """Whether it is a process of the same user: an address of this kind has no permissions."""
        size = struct.calcsize("3i")
        _, uid, _ = struct.unpack("3i", self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return bool(uid == os.getuid())

    def orders(self) -> list[dict[str, Any]] | None:
        """Return what it has ordered; `None` if it has left."""
        try:
            received = self.connection.recv(2**20)
        except ConnectionResetError:
            return None
        *lines, self.received = (self.received + received).split(b"\n")
        return [json.loads(line) for line in lines] if received else None

    def tell(self, **words: int) -> None:
        """Say something; one that has gone does not hear it."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(words).encode() + b"\n")


class _Server:
    """Forks this process as its clients order it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._clients = listener, set[_Client]()
        self._selector = selectors.DefaultSelector()
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._bury)

    def run(self) -> dict[str, Any] | None:
        """Fork for each order. Returns in a fork, with its order; `None` once the last client has left."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        while True:
            for key, _ in self._selector.select():
                if (order := key.data()) is not None:
                    self._become_a_fork()
                    return dict(order)
                if not self._selector.get_map():
                    return None

    def _accept(self) -> None:
        client = _Client(self._listener.accept()[0])
        if not client.is_ours:
            client.connection.close()
            return
        self._clients.add(client)
        self._selector.register(client.connection, selectors.EVENT_READ, lambda: self._serve(client))

    def _serve(self, client: _Client) -> dict[str, Any] | None:
        orders = client.orders()
        if orders is None:
            self._leave(client)
            return None
        for order in orders:
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                _end_with_parent(parent)()
                return order
            client.forks.add(pid)
            client.tell(started=pid)
        return None

    def _leave(self, client: _Client) -> None:
        self._selector.unregister(client.connection)
        client.connection.close()
        self._clients.remove(client)
        for pid in client.forks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        if not self._clients:
            for each in [*self._selector.get_map().values()]:
                self._selector.unregister(each.fileobj)
            self._listener.close()

    def _bury(self) -> None:
        self._woken.recv(2**10)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for client in self._clients:
                if pid in client.forks:
                    client.forks.remove(pid)
                    client.tell(ended=pid, code=os.waitstatus_to_exitcode(status))

    def _become_a_fork(self) -> None:
        """Let go of all that is the server's."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for each in (self._listener, self._woken, self._wakes, *(client.connection for client in self._clients)):
            each.close()


def _become(order: Mapping[str, Any], path: Sequence[str]) -> None:
    """Go on as the process that was ordered."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    output, errors = (os.open(order[name], os.O_WRONLY | os.O_APPEND) for name in ("output", "errors"))
    for number, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (errors, 2)):
        os.dup2(number, target)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    more = [each for each in order["env"].get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [order["cwd"], *more, *path]
    _, _, module, *sys.argv[1:] = order["argv"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _serve(program: str, *, is_apart: bool) -> None:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_address(program))
    except OSError:
        return  # another one was first
    listener.listen(128)
    if is_apart and os.fork():  # it is no child of the test process that happens to need it first
        os._exit(0)
    path = [each for each in sys.path if each not in {str(Path(__file__).parent), str(_TESTS)}]
    preload(program)
    gc.freeze()  # a fork's collector would write to each of these pages, and so copy it: most of all at its end
    order = _Server(listener).run()
    if order is not None:
        _become(order, path)


if __name__ == "__main__":
    _serve(sys.argv[1], is_apart="apart" in sys.argv[2:])
