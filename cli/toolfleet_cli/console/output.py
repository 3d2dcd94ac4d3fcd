"""Prints results on stdout, and everything about them on stderr; and says which optional libraries a command lacks."""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.policy.hints import TONES

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

_WIDEST = 2000  # characters of a row in a pipe
_INTERRUPTED = 130
_PATIENCE_SECONDS = 1.0  # what is faster needs no sign of life
# What comes from a module must not move the cursor, or worse. Line breaks and tabs do no harm.
_PASSWORD = re.compile(r"(://[^:/@\s]*):[^\s]*@")
_QUERY_SECRET = re.compile(r"([?&][^=&\s]*(?:password|secret|token)[^=&\s]*=)[^&\s]*", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_LIBRARIES = {
    "worker": ("httptools",),
    "flower": ("flower",),
    "up": ("httptools", "flower"),
    "demo": ("httptools", "flower", "mcp", "watchfiles", "yaml"),
    "gateway": ("httptools", "jwt", "mcp", "starlette", "uvicorn", "uvloop"),
    "mcp": ("jwt", "mcp", "starlette"),
    "host": ("httpx", "packaging", "starlette", "uvicorn", "watchfiles", "yaml"),
    "host mcp": ("starlette", "uvicorn", "mcp"),
}
_EXTRAS = {
    "gateway": "gateway",
    "mcp": "gateway",
    "host": "hosts",
    "host mcp": "mcp",
    "demo": "worker,hosts,mcp",
}  # for others, `worker`


def say(text: str) -> None:
    """Print plain text on stdout, with any characters."""
    out.print(plain(text), markup=False, emoji=False)


def note(text: str, *, style: str | None = None) -> None:
    """Print plain text on stderr."""
    err.print(plain(text), markup=False, emoji=False, style=style)


def fail(text: str, *, code: int) -> NoReturn:
    """Print why on stderr, and end with `code`."""
    note(text, style="red")
    raise SystemExit(code)


def say_json(value: Any) -> None:
    """Print JSON on stdout, for programs: escaped, so that every character passes every pipe."""
    typer.echo(json.dumps(value, indent=2))


def plain(text: str) -> str:
    """The text without control characters."""
    return _CONTROL.sub("", text)


def shown_url(url: str) -> str:
    """The URL without passwords that it may have, also among several hosts and in its query. Other text is as it was."""
    return _QUERY_SECRET.sub(r"\1**", _PASSWORD.sub(r"\1:**@", url))


def table(*columns: str) -> Table:
    """A table for people: the first column stays whole, long values in the others are folded and not cut off."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold", no_wrap=column == columns[0])
    return made


def add_row(made: Table, *cells: str | Text) -> None:
    """Add plain text to a table: brackets are no markup. `Text` keeps its style."""
    made.add_row(*(cell if isinstance(cell, Text) else Text(plain(cell)) for cell in cells))


def coloured(state: str) -> Text:
    """Return a module's state as tables show it."""
    return Text(state, style={"good": "green", "odd": "yellow"}.get(TONES.get(state, "bad"), "red"))


def show_table(made: Table) -> None:
    """Print a table; into a pipe each row as one line."""
    if not out.is_terminal:
        made.width = out.measure(made, options=out.options.update(width=_WIDEST)).maximum
    out.print(made, width=made.width)


def age(seconds: float | None) -> str:
    """Return how long ago, in the largest unit that fits."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


@contextmanager
def while_read() -> Generator[None]:
    """Handle the ends of endless output: Ctrl-C exits with code 130, and a closed pipe with 0."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at its end
        raise SystemExit(0) from None


@asynccontextmanager
async def progress(what: str) -> AsyncGenerator[None]:
    """Show on a terminal what is waited for, once that takes longer than a second."""
    shown = asyncio.create_task(_show(what))
    try:
        yield
    finally:
        shown.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await shown


async def _show(what: str) -> None:
    if err.is_terminal:
        await asyncio.sleep(_PATIENCE_SECONDS)
        with err.status(plain(what)):
            await asyncio.Event().wait()


def missing_for(command: str) -> list[str]:
    """The libraries that the command needs, and that are not here."""
    return [name for name in _LIBRARIES[command] if importlib.util.find_spec(name) is None]


def need(command: str) -> None:
    """Raise `SettingsError`, with what to install, if the command cannot run here."""
    if missing := missing_for(command):
        raise SettingsError(
            f"`toolfleet {command}` needs {' and '.join(missing)}, which an agent does not: pip install 'toolfleet[{_EXTRAS.get(command, 'worker')}]'."
        )
