"""Keeps this tier quick: a test here starts no process and opens no connection."""

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import_module("croniter")  # its import, with a process's first schedule, has `file` say what this machine is

_NOT_HERE = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "pty.spawn", "socket.connect", "subprocess.Popen"}
)
_seen: list[str] = []


def _note(event: str, _: tuple[Any, ...], watched: frozenset[str] = _NOT_HERE) -> None:
    if event in watched:  # not the module's own name: that is gone before the interpreter is
        _seen.append(event)


sys.addaudithook(_note)


@pytest.fixture(autouse=True)
def _stays_in_this_process() -> Iterator[None]:
    """Such a test belongs in `tests/integration`. Noted and not refused: what is tested could hide an error."""
    _seen.clear()
    yield
    assert _seen == []
