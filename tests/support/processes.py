"""Programs of a test's own, and looking at processes from outside."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import psutil


def is_gone(pid: int) -> bool:
    """Whether the process has ended; a dead one that nobody has buried yet counts."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def python_program(
    code: str, *args: object, env: Mapping[str, str] | None = None, stdin: bool = False
) -> Generator[subprocess.Popen[str]]:
    """Run `code` in a Python of its own, with its output in a pipe, and its input if asked; killed at the end, if it still runs."""
    argv = [sys.executable, "-c", code, *map(str, args)]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if stdin else None,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    ) as program:
        try:
            yield program
        finally:
            if program.poll() is None:
                os.killpg(program.pid, 9)


def next_line(program: subprocess.Popen[str]) -> str:
    """The next line that it prints; empty when it has ended."""
    assert program.stdout is not None
    return program.stdout.readline().strip()
