"""Prints the logs of the processes of a `toolfleet up`, and restarts one: `toolfleet logs` and `restart`."""

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from toolfleet_cli.console.output import fail, note, plain, while_read
from toolfleet_cli.processes.completion import complete_logs, complete_processes
from toolfleet_cli.processes.log_files import log_names, logs_folder
from toolfleet_registry.config.run_file import ListedProcess, find_running
from toolfleet_registry.errors import FleetError

_POLL_SECONDS = 0.2
_RESTART_SECONDS = 240.0  # a worker's calls may finish, and then it starts

FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Go on with the lines that come.")]
LinesOption = Annotated[int, typer.Option("-n", "--lines", metavar="N", min=0, max=1_000_000, help="The last so many.")]


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
    """Restart a process of the `toolfleet up` here: it ends in good order, a worker's calls finish, and starts anew."""
    from toolfleet_cli.watching.restart_requests import RestartRequests

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
    from toolfleet_cli.watching.log_tail import LogTail

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
