"""Launchers of `code_executor`'s programs, started without the module: as many users at once as a test wants."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modules.code_executor.isolation import LAUNCHER, Isolation
from modules.code_executor.limits import Limits
from support.processes import is_gone

SYSTEMS_PYTHON = shutil.which("python3.11", path="/usr/bin") or shutil.which("python3.12", path="/usr/bin")
"""One that every user may run, as it takes for user ids of their own."""
WITHOUT_LANDLOCK = [sys.executable, str(Path(__file__).with_name("without_landlock.py"))]


class Launched:
    """A launcher with its program."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def answer(self) -> dict[str, Any]:
        """What it says when the program has ended."""
        assert self.process.stdout is not None
        told = self.process.stdout.read()
        assert told, self.process.wait()
        answer: dict[str, Any] = json.loads(told)
        return answer


@contextmanager
def launched(
    isolation: Isolation, code: str, *, place: list[str] | None = None, alone: bool = False, **limits: Any
) -> Generator[Launched]:
    """Start a program in such a place; at the end nobody waits for it any more."""
    python = str(SYSTEMS_PYTHON) if isolation.startswith("user") else sys.executable
    job = {
        "code": code,
        "files": {},
        "limits": Limits(**limits).model_dump(),
        "most_bytes": 1000,
        "language": "python",
        "isolation": isolation,
        "alone": alone,
    }
    argv = [*(place or []), python, "-I", "-S", str(LAUNCHER)]
    env = {"PATH": os.environ["PATH"], "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        try:
            yield Launched(process)
        finally:
            process.stdin.close()


def ran(isolation: Isolation, code: str, **how: Any) -> dict[str, Any]:
    """What its launcher says of a program that has ended."""
    with launched(isolation, code, **how) as program:
        return program.answer()


def marked(mark: str) -> list[int]:
    """The living processes with the mark in their command, as the machine sees them."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "cmdline").read_bytes() and not is_gone(int(process.name)):
                found.append(int(process.name))
    return found


def as_marked(mark: str, code: str = "import time; time.sleep(600)") -> str:
    """A program that goes on under a command with the mark."""
    return f"import os, sys\nos.execv(sys.executable, [sys.executable, '-c', {code!r}, {mark!r}])"
