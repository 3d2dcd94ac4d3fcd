"""Starts programs whose imports are done: forks of one process that has them, each in all else a process of its own.

What a program imports takes most of the processor time of its start, and tests start hundreds. Tests of the start itself
(`toolfleet up`, what a command loads) start programs as users do, and so do those whose interpreter has variables of its own.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, Protocol

from support.programs.preloads import preload, program_of
from toolfleet_cli.local.child_processes import _end_with_parent, spawn, stop

_TESTS = Path(__file__).parents[2]
_AT_START = ("PYTHON", "LD_", "FAKETIME")
_LATER = {"PYTHONPATH", "PYTHONUNBUFFERED"}
"""Of the variables with such names an interpreter reads all but these before it runs anything."""


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


def _early(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_AT_START) and name not in _LATER}


class ForkServer:
    """The process with the imports of one program, and what it has said of its forks."""

    def __init__(self, program: str) -> None:
        self._ended: dict[int, int] = {}
        self._started: list[int] = []
        self._process = subprocess.Popen(
            [sys.executable, __file__, program],
            env={**os.environ, "PYTHONPATH": str(_TESTS), "PYTHONUNBUFFERED": "1"},
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self.close)

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, output: _File, errors: _File) -> "Fork":
        assert self._process.stdin is not None
        order = {"argv": list(argv), "env": dict(env), "cwd": cwd, "output": output.name, "errors": errors.name}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        while not self._started:
            self._hear(blocking=True)
        return Fork(self._started.pop(), self)

    def exit_code(self, pid: int) -> int | None:
        """Of one of its forks; None while that runs."""
        while pid not in self._ended and self._hear(blocking=False):
            pass
        return self._ended.get(pid)

    def _hear(self, *, blocking: bool) -> bool:
        """Take note of its next line. Whether there was one."""
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), blocking)
        line = self._process.stdout.readline()
        assert line or self._process.poll() is None, "the fork server has ended"
        if not line:
            return False
        said: dict[str, int] = json.loads(line)
        if "started" in said:
            self._started.append(said["started"])
            self._ended.pop(said["started"], None)  # another process once had this id
        else:
            self._ended[said["ended"]] = said["code"]
        return True

    def close(self) -> None:
        """Ends with its input, and each of its forks with it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


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


def _server(program: str) -> ForkServer:
    if program not in _servers:
        _servers[program] = ForkServer(program)
    return _servers[program]


def _tell(**words: int) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")  # in one piece, also out of a signal handler


def _bury(number: int, frame: object) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _tell(ended=pid, code=os.waitstatus_to_exitcode(status))


def _next_fork() -> dict[str, Any] | None:
    """Fork for each order. Returns in a fork, with its order; at the end of all orders None."""
    parent = os.getpid()
    for line in sys.stdin.buffer:
        order: dict[str, Any] = json.loads(line)
        with _no_burial():  # its start is told before its end
            pid = os.fork()
            if not pid:
                _end_with_parent(parent)()
                return order
            _tell(started=pid)
    return None


@contextlib.contextmanager
def _no_burial() -> Any:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


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


def _serve(program: str) -> None:
    path = [each for each in sys.path if each not in {str(Path(__file__).parent), str(_TESTS)}]
    preload(program)
    gc.freeze()  # a fork's collector would write to each of these pages, and so copy it: most of all at its end
    signal.signal(signal.SIGCHLD, _bury)
    order = _next_fork()
    if order is not None:
        _become(order, path)


if __name__ == "__main__":
    _serve(sys.argv[1])
