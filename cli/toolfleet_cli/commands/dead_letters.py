"""Lists, shows, replays and drops the calls with an unknown outcome: `toolfleet dead-letters`."""

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toolfleet_cli.commands.call import read_arguments, show_result
from toolfleet_cli.commands.completion import complete_dead
from toolfleet_cli.console import (
    ago,
    change_each,
    end_change,
    indented,
    moment,
    note,
    one_line,
    say,
    say_facts,
    say_json,
    show_list,
)
from toolfleet_cli.remote import Gateway, JsonOption, LimitOption, OffsetOption, ask, over_fleet, tool_of
from toolfleet_cli.resources import dead_letters
from toolfleet_registry.contracts.calls import DeadAttempt, DeadLetter
from toolfleet_registry.contracts.tool_definition import ToolDefinition
from toolfleet_registry.errors import NoSuchDeadLetter, NoSuchEntry, OperationRefused, SeveralLetters

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.store import DeadEntry

app = typer.Typer(no_args_is_help=True)

Kind = Literal["call", "wakeup", "webhook"]
KindOption = Annotated[Kind | None, typer.Option(help="Only letters of this kind.")]
_REPLAY_SECONDS = 60.0
_MORE_SECONDS = 15.0  # for the answer, beyond the call's own time
_ID = typer.Argument(metavar="ID", help="As `toolfleet dead-letters list` shows it.", autocompletion=complete_dead)
Words = Annotated[
    list[str] | None, typer.Argument(metavar="NAME=TEXT", help="In place of a call's argument; NAME:=JSON is JSON.")
]


@app.command("list")
@over_fleet
def list_(
    *,
    kind: KindOption = None,
    limit: LimitOption = 50,
    offset: OffsetOption = 0,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters, the latest first."""
    query = {"kind": kind, "limit": limit, "offset": offset}
    letters = ask(dead_letters.list_dead_letters, gateway, query=query).letters
    show_list(
        letters,
        "ID,KIND,SUBJECT,DIED,ATTEMPTS,ERROR",
        lambda one: (one.id, one.kind, one.subject, ago(one.died_at), one.attempts, one_line(one.error)),
        as_json=as_json,
        none="There are no dead letters." if offset == 0 else "There are no more dead letters.",
        more=f"There may be more: --offset {offset + limit} shows those before." if len(letters) == limit else "",
    )


@app.command()
@over_fleet
def show(
    letter_id: Annotated[str, _ID],
    *,
    kind: KindOption = None,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter: what was asked, the caller, and what is known of its end."""
    letter = _one(letter_id, kind, gateway)
    if as_json:
        say_json(letter)
    else:
        _print_letter(letter)


@app.command()
@over_fleet
def replay(
    letter_id: Annotated[str | None, _ID] = None,
    arguments: Words = None,
    *,
    kind: KindOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="The 1,000 latest wake-ups, or webhooks: as --kind says.")
    ] = False,
    whole: Annotated[
        str | None,
        typer.Option("--args", metavar="JSON", help="Such arguments as one JSON object; - reads it from stdin."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.001, max=1e8, help="Wait no longer, queue time included.")
    ] = None,
    gateway: Gateway | None = None,
    by: str | None = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a call's whole ToolResult.")] = False,
) -> None:
    """Run a call once more, as a new call in the same name, or have a wake-up or a webhook sent again under its id.

    First make sure that a call may happen twice. Arguments that were not kept, such as sensitive ones, must be given. A
    letter is dropped when its call succeeds, and when its event is on its way again. Exit code 1 if it is not.
    """
    if everything:
        if letter_id is not None or kind not in {"wakeup", "webhook"}:
            raise typer.BadParameter("--all needs --kind wakeup or webhook, and no ID: calls are replayed one by one.")
        seconds, query = _REPLAY_SECONDS + _MORE_SECONDS, {"kind": kind}
        report = ask(dead_letters.replay_dead_letters, gateway, query=query, by=by, seconds=seconds)
        end_change("Due again", report.due, report.problems)
    if letter_id is None:
        raise typer.BadParameter("name the ID of the letter to replay.")
    letter = _one(letter_id, kind, gateway)
    replayed = ask(
        dead_letters.replay_dead_letter,
        gateway,
        letter_id,
        query={"kind": letter.kind},
        body=_replay_request(letter, arguments or [], whole, timeout, gateway),
        by=by,
        seconds=(timeout or _REPLAY_SECONDS) + _MORE_SECONDS,
    )
    if replayed.result is None:
        end_change("Due again", 1, [])
    show_result(replayed.result, as_json=as_json)


@app.command()
@over_fleet
def drop(
    letter_ids: Annotated[list[str] | None, _ID] = None,
    *,
    kind: KindOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Drop all dead letters, or all of one --kind.")] = False,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Forget dead letters. Exit code 1 if one of them is not there; the others are dropped all the same."""
    if bool(letter_ids) == everything:
        raise typer.BadParameter("name the letters to drop, or say --all.")
    if everything:
        dropped = ask(dead_letters.drop_dead_letters, gateway, query={"kind": kind}, by=by).dropped
        note(f"Dropped: {dropped}.")
        return

    def one(letter_id: str) -> None:
        try:
            ask(dead_letters.drop_dead_letter, gateway, letter_id, query={"kind": kind}, by=by)
        except OperationRefused as exc:
            if exc.error_code == SeveralLetters.error_code:  # a gateway's refusal has the code only
                raise _several(letter_id) from None
            raise

    change_each(letter_ids or [], one, done="Dropped", absent=_none)


def _one(letter_id: str, kind: Kind | None, gateway: Gateway | None) -> "DeadEntry":
    """Return a letter. Raises `OperationRefused` if there is none, or several of different kinds."""
    try:
        found = ask(dead_letters.get_dead_letter, gateway, letter_id, query={"kind": kind}).letters
    except NoSuchEntry:
        raise NoSuchEntry(_none(letter_id)) from None
    if len(found) > 1:
        raise _several(letter_id)
    return found[0]


def _none(letter_id: str) -> str:
    return str(NoSuchDeadLetter(letter_id))


def _several(letter_id: str) -> OperationRefused:
    return OperationRefused(f"{letter_id!r} is a call and a wake-up that was to make it: say --kind.")


def _replay_request(
    letter: "DeadEntry", words: list[str], whole: str | None, seconds: float | None, gateway: Gateway | None
) -> "dead_letters.ReplayRequest":

    arguments: Any = None
    if words or whole is not None:
        if letter.kind != "call":
            raise typer.BadParameter("only a call takes arguments.")
        text = sys.stdin.read() if whole == "-" else whole  # sensitive values should not be in a shell's history
        arguments = read_arguments(words, text, _tool_of(letter) if gateway is None else None)
        if not isinstance(arguments, dict):
            raise typer.BadParameter("--args must be a JSON object.")
    values: dict[str, Any] = {"arguments": arguments}
    if seconds is not None or gateway is None:  # here the tool's own time is the default, and has no bound
        values["timeout_seconds"] = seconds
    return dead_letters.ReplayRequest.model_construct(None, **values)


def _tool_of(letter: "DeadEntry") -> ToolDefinition | None:
    """Return the tool of a dead call, by which words become arguments."""
    if letter.body is None:
        return None
    call = DeadLetter.model_validate(letter.body)
    return tool_of(None, call.tool_name, call.caller)


def _print_letter(letter: "DeadEntry") -> None:
    """Print what was asked, the caller, and the known outcome."""
    if letter.body is None:
        say(f"{letter.id}\n\n{letter.error}")
    elif letter.kind == "call":
        _print_call(DeadLetter.model_validate(letter.body))
    else:
        say(f"{letter.subject}\n\n{letter.error}\n")
        say_facts({letter.kind: letter.id, "attempts": str(letter.attempts), "died": _when(letter.died_at)})
        lost = "" if letter.replayable else "; sensitive arguments are not kept, so it can be dropped only"
        say(f"\nBody{lost}:\n{indented(letter.body)}")


def _print_call(letter: DeadLetter) -> None:
    say(f"{letter.tool_name}\n\n{letter.error_code}: {letter.reason}\n")
    say_facts(
        {
            "call": letter.call_id,
            "user": letter.user_id,
            "permission": letter.caller.permission,
            "effect": letter.effect or "not declared",
            "published": moment(letter.published_at),
            "died": _when(letter.died_at),
            "idempotency key": letter.idempotency_key,
            "replay of": letter.replay_of,
        }
    )
    for attempt in letter.attempts:
        say(f"attempt {attempt.attempt}: {attempt.outcome}{_took(attempt)}")
    lost = "; [redacted] and [not kept] must be given for a replay" if letter.is_redacted else ""
    say(f"\nArguments{lost}:\n{indented(letter.arguments)}")
    if letter.context is not None:
        say(f"\nContext:\n{indented(letter.context.model_dump(mode='json', exclude_defaults=True))}")


def _took(attempt: DeadAttempt) -> str:
    return "" if attempt.ms is None else f" after {attempt.ms:.0f} ms"


def _when(at: float) -> str:
    return f"{moment(at)}, {ago(at)} ago"
