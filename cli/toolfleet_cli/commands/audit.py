"""Prints who called what and how it ended, and removes the arguments and results of calls: `toolfleet audit`."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from toolfleet_cli.commands.completion import complete_modules_and_tools
from toolfleet_cli.console import fail, note, plain, say, say_json, while_read
from toolfleet_cli.remote import Gateway, ask, over_fleet
from toolfleet_cli.resources import audit, calls
from toolfleet_registry.contracts import ErrorCode
from toolfleet_registry.contracts.attempts import AuditOutcome
from toolfleet_registry.errors import FleetUnavailable, NoSuchEntry
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    Ask = Callable[..., audit.AuditLines]

app = typer.Typer(no_args_is_help=True)

_OUTCOMES = get_args(AuditOutcome)
_MOST = 1_000  # lines of one answer
_PAUSE_SECONDS = 1.0  # between two questions for what has come


@app.command()
@over_fleet
def tail(
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with the lines that come.")] = False,
    count: Annotated[
        int, typer.Option("-n", "--lines", metavar="N", min=0, max=100_000, help="The last so many.")
    ] = 20,
    tool: Annotated[
        str | None,
        typer.Option(help="Only this tool's calls, or this module's.", autocompletion=complete_modules_and_tools),
    ] = None,
    user: Annotated[str | None, typer.Option(help="Only this user's calls.")] = None,
    outcome: Annotated[
        str | None, typer.Option(help=f"Only calls with this outcome ({', '.join(_OUTCOMES)}) or error code.")
    ] = None,
    changes: Annotated[bool, typer.Option("--changes", help="Only what operators have changed, and no calls.")] = False,
    gateway: Gateway | None = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an object a line.")] = False,
) -> None:
    """Show the latest calls that have ended, and what operators have changed, a line each, oldest first.

    With --follow it goes on while the fleet is away, until it is interrupted.
    """
    _require_known(outcome)

    wanted = {"tool": tool, "user": user, "outcome": outcome, "changes": changes}
    settings = load_settings() if gateway is None else None

    def lines(**part: Any) -> "audit.AuditLines":
        return ask(audit.list_audit, gateway, query=wanted | part, settings=settings)

    with while_read():
        latest, last = _latest(lines, count)
        for line in latest:
            _print(line, as_json=as_json)
        if follow:
            for line in _coming(lines, last):
                _print(line, as_json=as_json)
        elif not latest:
            note("There are no such lines.")


def _require_known(outcome: str | None) -> None:
    """Raise `BadParameter` for a misspelt outcome: it would find no lines, as if all were well."""
    codes = sorted(get_args(ErrorCode))
    if outcome is not None and outcome not in {*_OUTCOMES, *codes}:
        there = f"there are the outcomes {', '.join(_OUTCOMES)} and the error codes {', '.join(codes)}."
        raise typer.BadParameter(f"there is no {outcome!r}; {there}", param_hint="--outcome")


@app.command()
@over_fleet
def show(
    call_id: Annotated[str, typer.Argument(metavar="CALL", help="Its id, as `toolfleet audit tail` prints it.")],
    *,
    gateway: Gateway | None = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a call: its lines in the audit, and its arguments and result, where TOOLFLEET_CALL_CONTENTS keeps them. Exit code 1 if no such call is known."""
    try:
        shown = ask(calls.show_call, gateway, call_id)
    except NoSuchEntry:
        fail(f"There is no call {call_id[:80]!r}, or it ended too long ago.", code=1)
    if as_json:
        say_json(shown.model_dump(exclude_none=gateway is not None))  # at each door as it has always been
        return
    for line in shown.root.lines:
        _print(line, as_json=False)
    if shown.root.turn is not None:
        note(f"It {shown.root.turn}.")
    contents = shown.root.contents
    if contents is None:
        note("Arguments and result are not kept, or not for this reader: see TOOLFLEET_CALL_CONTENTS.")
        return
    for name in ("arguments", "result", "error"):
        if (value := getattr(contents, name)) is not None:
            text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
            say(plain(f"{name}{' (the first 16 KiB)' if name in contents.cut else ''}: {text}"))


@app.command()
@over_fleet
def forget(
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose calls.")],
    *,
    artifact: Annotated[
        str | None, typer.Option("--artifact", metavar="ID", help="Delete only this large result, by its handle.")
    ] = None,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Remove the arguments and results that are kept of a user's calls, artifacts too. Their lines in the audit stay."""
    if artifact is not None:
        if not ask(calls.delete_artifacts, gateway, query={"user_id": user, "id": artifact}, by=by).artifacts:
            fail(f"User {user!r} has no artifact {artifact[:80]!r}, or it has expired.", code=1)
        note(f"Deleted the artifact {artifact}.")
        return
    forgotten = ask(calls.forget_call_contents, gateway, query={"user_id": user}, by=by)
    kept = f" and {forgotten.artifacts} artifacts" if forgotten.artifacts else ""
    note(f"Removed the contents of {forgotten.calls} calls{kept}.")


def _latest(lines: "Ask", count: int) -> tuple[list[dict[str, Any]], str | None]:
    """Return at most the `count` latest lines, oldest first, and the `after` of those that come."""
    page = lines(limit=max(1, min(count, _MOST)))
    found, last = list(page.lines), page.last
    while page.next is not None and len(found) < count:
        page = lines(limit=min(count - len(found), _MOST), cursor=page.next)
        found += page.lines
    return found[:count][::-1], last


def _coming(lines: "Ask", last: str | None) -> Iterator[dict[str, Any]]:
    """Yield lines as they come, for ever, and say when the fleet does not answer, and when it does again."""
    is_away = False
    while True:
        try:
            page = lines(limit=_MOST, after=last)
        except FleetUnavailable as exc:
            if not is_away:
                note(f"{exc} It is asked again.", style="dim")
            is_away = True
            time.sleep(_PAUSE_SECONDS)
            continue
        if is_away:
            note("The fleet is back.", style="dim")
        is_away, has_more, last = False, page.last != last, page.last
        yield from page.lines
        if not has_more:
            time.sleep(_PAUSE_SECONDS)


def _print(line: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(line))
    else:
        typer.echo(plain("  ".join(filter(None, _parts(line)))))
    sys.stdout.flush()  # into a pipe, too: a user follows


def _parts(line: dict[str, Any]) -> list[str]:
    code, took, queued = line.get("error_code"), line.get("duration_ms"), line.get("queued_ms")
    return [
        _moment(line.get("ts")),
        str(line.get("outcome", "?")) + (f" ({code})" if code else ""),
        str(line.get("change", "")),
        _one_line(line.get("tool", "?")),
        _one_line(line.get("user_id") or "-"),
        "" if took is None else f"{took:g} ms",
        "" if queued is None else f"queued {queued:g} ms",
        "" if line.get("attempts", 1) == 1 else f"attempts {line['attempts']}",
        *_decided(line.get("decisions")),
        str(line.get("call_id", "")),
        _one_line(line.get("by", "")),
        _one_line(line.get("reason") or line.get("why") or ""),
    ]


def _decided(decisions: Any) -> list[str]:
    """Return the unusual decisions."""
    known = decisions if isinstance(decisions, dict) else {}
    return [f"{point}={_one_line(word)}" for point, word in known.items() if word not in ("yes", "allowed", "passed")]


def _moment(at: Any) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(at)))
    except (TypeError, ValueError, OverflowError, OSError):  # no time that a calendar has
        return "?"


def _one_line(text: Any) -> str:
    return " ".join(str(text).split())
