"""Prints results on stdout and everything about them on stderr: text, JSON, tables, lists, facts, errors of tool files.

It also says which optional libraries a command needs.
"""

import asyncio
import contextlib
import importlib.util
import json
import math
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import Any, NoReturn, TypeVar

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolfleet_registry.contracts.tool_definition import NO_TOOLS, ToolLoadError
from toolfleet_registry.errors import NoSuchEntry, OperationRefused, SettingsError
from toolfleet_registry.policy.hints import TONES
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock

T = TypeVar("T")

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

SECRETS = frozenset(
    {
        "signing_key",
        "signing_keys_old",
        "core_secret",
        "gateway_key",
        "registry_webhooks",
        "registry_webhooks_secret",
        "module_headers",
        "approvals",
    }
)
"""Settings whose values are never shown: the path of a webhook may be a token. Other URLs are shown without passwords."""

_HIDDEN = "(hidden)"
_WIDEST = 2000  # characters of a row in a pipe
_ONE_LINE = 200  # characters of a value in a list or a fact
_INTERRUPTED = 130
_PATIENCE_SECONDS = 1.0  # what is faster needs no sign of life
_PASSWORD = re.compile(r"(://[^:/@\s]*):[^\s]*@")
_QUERY_SECRET = re.compile(r"([?&][^=&\s]*(?:password|secret|token)[^=&\s]*=)[^&\s]*", re.IGNORECASE)
# What comes from a module must not move the cursor, or worse. Line breaks and tabs do no harm.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_IN_EFFECT = {
    "previous": " Its version before is served.",
    "current": " The file is served.",
    "none": " None of its tools are served.",
}
_LIBRARIES = {
    "worker": ("httptools",),
    "flower": ("flower",),
    "up": ("httptools", "flower"),
    "demo": ("httptools", "flower", "mcp", "watchfiles", "yaml"),
    "gateway": ("httptools", "jwt", "mcp", "starlette", "uvicorn", "uvloop"),
    "mcp": ("jwt", "mcp", "starlette"),
    "host": ("httpx", "packaging", "starlette", "uvicorn", "watchfiles", "yaml"),
    "host mcp": ("starlette", "uvicorn", "mcp"),
    "artifacts": ("obstore", "re2"),
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
    """Print JSON on stdout, for programs: escaped, so that every character passes every pipe. Models and dataclasses are objects."""
    typer.echo(json.dumps(value, indent=2, default=_fields_of))


def plain(text: str) -> str:
    """Return the text without control characters."""
    return _CONTROL.sub("", text)


def shown_url(url: str) -> str:
    """Return the URL without the passwords in it, also of several hosts and in its query. Other text is unchanged."""
    return _QUERY_SECRET.sub(r"\1**", _PASSWORD.sub(r"\1:**@", url))


def shown_value(settings: Settings, name: str) -> Any:
    """Return a setting as JSON: secrets are `(hidden)`, and URLs have no passwords."""
    value: Any = settings.model_dump(mode="json", include={name})[name]
    if value == math.inf:
        return "inf"  # JSON has no such number
    if name in SECRETS:
        return _HIDDEN if value else value
    return _without_passwords(sorted(value) if isinstance(getattr(settings, name), frozenset) else value)


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return shown_url(value)
    return {name: _without_passwords(one) for name, one in value.items()} if isinstance(value, dict) else value


def table(*columns: str) -> Table:
    """Return a table for people: the first column stays whole, long values in the others are folded."""
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


def show_rows(columns: str, rows: Iterable[T], cells: Callable[[T], Sequence[object]]) -> None:
    """Print a table: the titles of its columns, with commas between them, and a line of cells for each row.

    A cell that is `None` is shown as `-`, and `Text` keeps its style.
    """
    shown = table(*columns.split(","))
    for row in rows:
        add_row(shown, *(each if isinstance(each, Text) else "-" if each is None else str(each) for each in cells(row)))
    show_table(shown)


def show_list(
    rows: Sequence[T],
    columns: str,
    cells: Callable[[T], Sequence[object]],
    *,
    as_json: bool,
    none: str,
    more: str = "",
    to_json: Callable[[T], object] | None = None,
) -> None:
    """Print a list as JSON or as a table (see `show_rows`).

    Args:
        rows: The entries.
        columns: The titles of the columns.
        cells: Returns the cells of an entry.
        as_json: Whether to print JSON.
        none: What to say if there are no entries.
        more: What to say below the table, such as how to see the next page.
        to_json: Returns an entry as JSON; by default all its fields.

    """
    if as_json:
        say_json([to_json(row) for row in rows] if to_json else rows)
    elif not rows:
        note(none)
    else:
        show_rows(columns, rows, cells)
        if more:
            note(more)


def _fields_of(record: Any) -> Any:
    return record.model_dump(mode="json") if isinstance(record, BaseModel) else asdict(record)


def say_facts(facts: Mapping[str, object]) -> None:
    """Print the facts that have a value, one a line."""
    for name, value in facts.items():
        if value is not None and value != "":
            say(f"{name}: {one_line(str(value))}")


def one_line(text: str) -> str:
    """Return the text, or its beginning, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _ONE_LINE else f"{line[:_ONE_LINE]}…"


def indented(value: object) -> str:
    """Return a value as JSON for people."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def change_each(
    ids: Sequence[str], change: Callable[[str], bool | None], *, done: str, absent: Callable[[str], str]
) -> NoReturn:
    """Change the entries of these ids one by one, and end the command as `end_change` does.

    Args:
        ids: The ids; one that is named twice is changed once.
        change: Makes the change and returns whether the entry may still be under way.
        done: What was done, such as `Dropped`.
        absent: Returns what to say of an id without an entry.

    """
    count, under_way, problems = 0, 0, list[str]()
    for each in dict.fromkeys(ids):
        try:
            under_way += bool(change(each))
            count += 1
        except NoSuchEntry:
            problems.append(absent(each))
        except OperationRefused as exc:
            problems.append(str(exc))
    end_change(done, count, problems, under_way=under_way)


def no_such_key(key_id: str) -> str:
    """Return what to say of an id without an API key."""
    return f"There is no API key {key_id[:80]!r}: `toolfleet keys list` shows those that there are."


def end_change(done: str, count: int, problems: Sequence[str], *, under_way: int = 0) -> NoReturn:
    """Say how many entries were changed and what went wrong with others; end with exit code 1 if anything did."""
    if count or not problems:
        note(f"{done}: {count}.")
    if under_way:
        note(f"Tried just now, so that they may still be accepted: {under_way}.", style="yellow")
    for problem in problems:
        note(problem, style="red")
    raise typer.Exit(1 if problems else 0)


def show_load_errors(errors: Sequence[ToolLoadError]) -> bool:
    """Print the errors of tool files, one a line, and once for each file what of it is served. Return whether any is more than a note."""
    by_file = defaultdict[str, list[ToolLoadError]](list)
    for error in errors:
        by_file[error.file].append(error)
    for found in by_file.values():
        state = _IN_EFFECT[found[-1].in_effect]
        if found[-1].in_effect == "current" and any(error.error_type == "DuplicateTool" for error in found):
            state = " Its other tools are served."
        for error in found:
            place = error.file if error.line is None else f"{error.file}:{error.line}"
            says_state = error is found[-1] and error.error_type != NO_TOOLS
            note(f"{place}: {error.error_type}: {error.message}{state if says_state else ''}")
    return not all(error.is_note for error in errors)


def ago(at: float) -> str:
    """Return how long ago that moment of the fleet's time was."""
    return age(max(0.0, fleet_clock.now() - at))


def until(at: float) -> str:
    """Return how long it is until that moment of the fleet's time."""
    return age(max(0.0, at - fleet_clock.now()))


def moment(at: float) -> str:
    """Return a moment in this machine's time zone."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):  # a calendar has no such time
        return f"{at:g}"


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
    """Return the libraries that the command needs and that are not installed."""
    return [name for name in _LIBRARIES[command] if importlib.util.find_spec(name) is None]


def need(command: str) -> None:
    """Raise `SettingsError`, with what to install, if the command cannot run here."""
    if missing := missing_for(command):
        raise SettingsError(
            f"`toolfleet {command}` needs {' and '.join(missing)}, which an agent does not: pip install 'toolfleet[{_EXTRAS.get(command, 'worker')}]'."
        )
