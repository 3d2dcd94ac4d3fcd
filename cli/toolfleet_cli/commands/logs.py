"""Prints the logs of the processes of a `toolfleet up`, and restarts one: `toolfleet logs` and `restart`."""

import contextlib
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from toolfleet_cli.commands.completion import complete_logs, complete_processes, log_names, logs_folder
from toolfleet_cli.console import fail, note, plain, while_read
from toolfleet_registry.config.run_file import ListedProcess, find_running
from toolfleet_registry.errors import FleetError

_POLL_SECONDS = 0.2
_RESTART_SECONDS = 240.0  # a worker's calls may finish, and then it starts

FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Go on with the lines that come.")]
LinesOption = Annotated[int, typer.Option("-n", "--lines", metavar="N", min=0, max=1_000_000, help="The last so many.")]

_NAME = "restart"

_MOST_BYTES = 256 * 2**10  # of one look
_LONGEST_LINE = 64 * 2**10
_BLOCK = 64 * 2**10

_LONGEST_TRACEBACK = 30  # lines; of a longer one the last: they say where it happened, and what
_MOST_LINES, _WINDOW_SECONDS = 200, 10.0  # a module that logs in a loop must not drown the others
_LONGEST_EXCERPT = 2_000  # characters

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_CHAINED = ("The above exception was the direct cause of", "During handling of the above exception, another")
# The frames of a traceback: indented, or in the boxes of rich and of exception groups.
_WITHIN = re.compile(r"\s|[│╭╰╮❱|+]|$")
# As structlog's console prints a level, as its JSON does, and as logging and uvicorn do.
_SERIOUS = re.compile(
    r"\[(?:warning|error|critical)\s*\]"
    r'|"level": ?"(?:warning|error|critical)"'
    r"|^.{0,80}?\b(?:WARNING|ERROR|CRITICAL)\b"
)


def register(app: typer.Typer) -> None:
    """Give the app the commands."""
    app.command()(logs)
    app.command()(restart)


def logs(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Such as worker-fast, or a module.", autocompletion=complete_logs),
    ] = None,
    *,
    follow: FollowOption = False,
    lines: LinesOption = 1000,
) -> None:
    """Print what a process of `toolfleet up` has logged, also when it has ended; without a name, which there are."""
    folder = logs_folder(Path.cwd())
    names = log_names(folder)
    if name is None:
        typer.echo("\n".join(names))
    elif name not in names:
        fail(f"There is no log of {name!r}: there are {', '.join(names) or 'none'}.", code=1)
    else:
        with while_read():
            _print(folder / f"{name}.log", lines, follow=follow)


def restart(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Such as worker-fast, or a module.", autocompletion=complete_processes)
    ],
) -> None:
    """Restart a process of the `toolfleet up` here: it ends in good order, a worker's calls finish, and it starts again."""
    folder, before = _running(name)
    RestartRequests(folder).ask(name)
    give_up_at = time.monotonic() + _RESTART_SECONDS
    while time.monotonic() < give_up_at:
        time.sleep(_POLL_SECONDS)
        _, now = _running(name)
        if now.pid != before.pid and now.state == "ready":
            note(f"{name} is ready again (process {now.pid}).")
            return
        if now.state == "dead" and now != before:
            fail(f"{name} does not stay alive: `toolfleet logs {name}` shows why.", code=1)
    fail(f"{name} was not ready within {_RESTART_SECONDS:g} s: `toolfleet logs {name}` may show why.", code=1)


def _running(name: str) -> tuple[Path, ListedProcess]:
    found = find_running(Path.cwd())
    if found is None:
        raise FleetError("No fleet runs here: `toolfleet up`, here or in a folder above, starts one.")
    folder, run_file = found
    if name not in run_file.processes:
        fail(f"There is no process {name!r}: there are {', '.join(run_file.processes) or 'none'}.", code=1)
    return folder, run_file.processes[name]


def _print(path: Path, lines: int, *, follow: bool) -> None:
    tail = LogTail(path, lines=lines)
    while (found := tail.read()) or follow:
        _echo(found)
        if not found:
            time.sleep(_POLL_SECONDS)
    _echo(tail.rest())


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(plain(line))
    sys.stdout.flush()  # into a pipe, too: a user follows


class RestartRequests:
    """The pending restart requests in the folder of a fleet, its `.toolfleet`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _NAME

    def ask(self, name: str) -> None:
        """Ask for the process of this name, as the run file has it. Raises `OSError` where we may not write."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        (self._folder / name).touch(mode=0o600)

    def take(self) -> list[str]:
        """Return the names that were requested since the last call, and forget the requests."""
        taken: list[str] = []
        with contextlib.suppress(OSError):  # there is no request yet, or an invalid one
            for path in sorted(self._folder.iterdir()):
                path.unlink()
                taken.append(path.name)
        return taken


class LogTail:
    """The lines of a log file: its last `lines`, and those that are added."""

    def __init__(self, path: Path, *, lines: int = 0) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0
        self._rest = b""
        try:
            with path.open("rb") as file:
                self._inode = os.fstat(file.fileno()).st_ino
                self._offset = _start_of_last(file, lines)
        except OSError:
            pass  # it may come

    def read(self) -> list[str]:
        """Return the whole lines that were added, without their ends, 256 kB at most; none if there is no file."""
        try:
            with self._path.open("rb") as file:
                text = self._rest + self._more(file)
        except OSError:
            return []
        *lines, self._rest = text.split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def rest(self) -> list[str]:
        """Return the unfinished last line, if there is one, when reading ends."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest else []

    def _more(self, file: BinaryIO) -> bytes:
        status = os.fstat(file.fileno())
        if status.st_ino != self._inode or status.st_size < self._offset:  # a new one, or it was emptied
            self._inode, self._offset, self._rest = status.st_ino, 0, b""
        file.seek(self._offset)
        more = file.read(_MOST_BYTES)
        self._offset += len(more)
        return more


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Return where the last so many lines begin."""
    end = start = file.seek(0, os.SEEK_END)
    if lines == 0:
        return end
    found = 0
    while start > 0:
        size = min(_BLOCK, start)
        start -= size
        file.seek(start)
        block = file.read(size)
        at = len(block) - 1 if start + size == end and block.endswith(b"\n") else len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == lines:
                return start + at + 1
    return 0


class LogExcerpts:
    """The excerpts of one log; `feed` it all lines of the log."""

    def __init__(self) -> None:
        self._traceback: deque[str] | None = None
        self._is_cut = False
        self._window_ends = 0.0
        self._shown = self._left_out = 0

    def feed(self, lines: Iterable[str], now: float) -> list[str]:
        """Return the lines to show; `now` in seconds. If there are too many, their number is shown."""
        shown: list[str] = []
        if now >= self._window_ends:
            if self._left_out:
                shown.append(f"… {self._left_out} lines more are in its log")
            self._window_ends, self._shown, self._left_out = now + _WINDOW_SECONDS, 0, 0
        picked = [each for line in lines for each in self._pick(line[:_LONGEST_EXCERPT])]
        lines_left = max(0, _MOST_LINES - self._shown)
        self._shown += len(picked[:lines_left])
        self._left_out += len(picked[lines_left:])
        return shown + picked[:lines_left]

    def _pick(self, line: str) -> list[str]:
        if self._traceback is not None:
            return self._go_on(self._traceback, line)
        if _TRACEBACK.search(line):
            self._traceback, self._is_cut = deque([line], maxlen=_LONGEST_TRACEBACK), False
            return []
        return [line] if _SERIOUS.search(line) or line.startswith(_CHAINED) else []

    def _go_on(self, traceback: deque[str], line: str) -> list[str]:
        self._is_cut |= len(traceback) == traceback.maxlen
        traceback.append(line)
        if _WITHIN.match(line):
            return []
        self._traceback = None
        return ["… (its beginning is in the log)", *traceback] if self._is_cut else [*traceback]
