"""`toolfleet up` as a person runs it, and the other commands beside it."""

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from unittest.mock import patch

import psutil
import structlog

from support.processes import is_gone
from support.programs.fork_server import Process, run
from support.waiting import wait_until_sync
from toolfleet_registry.config.run_file import RunFile
from toolfleet_registry.settings import NULL

COMMAND = [sys.executable, "-c", "from toolfleet_cli import main; main()"]
_UP_SECONDS = 90  # nine Pythons start, perhaps on a machine that has other things to do
_CALL_SECONDS = 60


@dataclass
class Up:
    """A fleet in `folder` that was up at some time."""

    folder: Path
    process: subprocess.Popen[bytes]
    output: Path

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def run_file(self) -> RunFile:
        return RunFile.model_validate_json((self.folder / ".toolfleet" / "run.json").read_bytes())

    def log(self, name: str) -> str:
        return (self.folder / ".toolfleet" / "logs" / f"{name}.log").read_text(errors="replace")

    def processes(self) -> dict[int, str]:
        """All that it has started, and what these have: process id -> command line."""
        found: dict[int, str] = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                found[child.pid] = " ".join(child.cmdline())
        return found

    def pid(self, *words: str) -> int:
        """The process whose command line has all these words."""
        (pid,) = (pid for pid, line in self.processes().items() if all(word in line for word in words))
        return pid

    def wait(self, *, seconds: float = 60) -> int:
        """Its exit code, once it has ended."""
        wait_until_sync(lambda: self.process.poll() is not None, f"`up` has ended\n{self.said()}", seconds=seconds)
        return self.process.wait()


@contextmanager
def starting(
    folder: Path, env: Mapping[str, str] | None = None, *options: str, usual_port: int | None = None
) -> Generator[Up]:
    """Run `toolfleet up` in `folder`; whatever happens, nothing is left of it.

    It keeps no large results: pages show what a reader has who installs what they name. With an empty variable, in `env`,
    it does what it does where their libraries are.

    `usual_port`: that of its gateway, if it is free; other fleets of this machine come and go at the product's.
    """
    output = folder / "up.txt"
    command = list(COMMAND)
    if usual_port is not None:
        command[-1] = f"from toolfleet_cli.local import fleet; fleet.DEFAULT_PORT = {usual_port}; {command[-1]}"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, "up", *options],
            cwd=folder,
            env={**os.environ, "TOOLFLEET_ARTIFACT_STORE": NULL, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Up(folder, process, output)
    finally:
        leave_nothing(process)


@contextmanager
def up(
    folder: Path, env: Mapping[str, str] | None = None, *options: str, usual_port: int | None = None
) -> Generator[Up]:
    """The same, from when it says that it is up."""
    with starting(folder, env, *options, usual_port=usual_port) as fleet:
        wait_until_sync(
            lambda: "The fleet is up." in fleet.said() or fleet.process.poll() is not None,
            "it is up",
            seconds=_UP_SECONDS,
        )
        assert fleet.process.poll() is None, fleet.said()
        yield fleet


def leave_nothing(process: Process) -> None:
    """End it and all that it has started."""
    if process.poll() is None:
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in children:
            if not is_gone(child.pid):
                child.kill()


def toolfleet(*words: object, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run another command to its end."""
    argv = [sys.executable, "-m", "toolfleet_cli", *map(str, words)]
    return run(argv, cwd=cwd, env=env or {}, timeout_seconds=_CALL_SECONDS)


def printed(program: str, *, cwd: Path, env: Mapping[str, str] = MappingProxyType({})) -> str:
    """What a reader's program prints, run to its end as a file of that folder; in this process, which has its imports done."""
    file = cwd / "program.py"
    file.write_text(program)
    structlog.reset_defaults()  # a program of its own has configured nothing, whatever ran here before
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(patch.dict(os.environ, env))
        stack.enter_context(patch.object(sys, "path", [str(cwd), *sys.path]))
        output = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        runpy.run_path(str(file), run_name="__main__")
    return output.getvalue()


def call(tool: str, *words: str, cwd: Path) -> dict[str, object]:
    """`toolfleet call … --json`."""
    ended = toolfleet("call", tool, *words, "--json", "--timeout", 40, cwd=cwd)
    assert ended.stdout, ended.stderr
    result = json.loads(ended.stdout)
    assert isinstance(result, dict)
    return result


@contextmanager
def publish(tool: str, *words: str, cwd: Path) -> Generator[None]:
    """A `toolfleet call` that is killed at the end, so that nobody takes the call back."""
    argv = [*COMMAND, "call", tool, *words]
    with subprocess.Popen(argv, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
        try:
            yield
        finally:
            client.kill()
