"""The command, run in the test's own process."""

import contextlib
import gc
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest
import structlog

from toolfleet_cli import main


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, and what it printed."""

    code: object
    out: str
    err: str


Run = Callable[..., Ended]
Step = Callable[[], object]


def run(
    *words: object, cwd: Path | None = None, env: Mapping[str, str] = MappingProxyType({}), steps: Sequence[Step] = ()
) -> Ended:
    """Run the command to its end, in a folder and with more variables; after each line that it prints, do the next step.

    In a test with a running event loop, call it in a thread.
    """
    out, err = _Output(steps), _Output(())
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd or Path.cwd()))
        stack.enter_context(patch.dict(os.environ, env))
        stack.enter_context(patch.object(sys, "argv", ["toolfleet", *map(str, words)]))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(_own_logging())
        with pytest.raises(SystemExit) as ended:
            main()
    return Ended(ended.value.code, out.text(), err.text())


def call(tool: str, *words: str, cwd: Path, env: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """`toolfleet call … --json`: its result."""
    ended = run("call", tool, *words, "--json", cwd=cwd, env=env)
    assert ended.out, ended.err
    result: dict[str, Any] = json.loads(ended.out)
    return result


def interrupt() -> None:
    """Press Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


class _Output(io.TextIOWrapper):
    """Keeps what is printed, and does a step after each line."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="", write_through=True)
        self._steps = iter(steps)

    def write(self, text: str) -> int:
        written = super().write(text)
        for _ in range(text.count("\n")):
            next(self._steps, _nothing)()
        return written

    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


def _nothing() -> None:
    pass


@contextmanager
def _own_logging() -> Generator[None]:
    """Take back what the command has done to this process: its logs go to a stream that is closed after it."""
    was_configured, before, root = structlog.is_configured(), structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        gc.enable()
        root.handlers[:] = handlers
        root.setLevel(level)
        if was_configured:
            structlog.configure(**before)
        else:  # what is not configured prints nothing
            structlog.reset_defaults()
