"""Lists, shows, replays and drops the calls whose outcome is unknown: `toolfleet dead`."""

import dataclasses
import sys
from typing import Annotated, Literal, NoReturn

import typer

from toolfleet_cli.console.dead_letters import ago, one_line, print_letter
from toolfleet_cli.console.output import add_row, note, say_json, show_table, table
from toolfleet_cli.console.result import show_result
from toolfleet_cli.direct.dead_letters import RedisLetters
from toolfleet_cli.processes.completion import complete_dead
from toolfleet_cli.remote.dead_letters import GatewayLetters
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway

app = typer.Typer(
    help="Calls whose end nobody can know, wake-ups and webhooks that nobody accepted: look at them, try them anew, drop them.",
    no_args_is_help=True,
)

Kind = Literal["call", "wakeup", "webhook"]
KindOption = Annotated[Kind | None, typer.Option(help="Only letters of this kind.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_ID = typer.Argument(metavar="ID", help="As `toolfleet dead list` shows it.", autocompletion=complete_dead)
Words = Annotated[
    list[str] | None, typer.Argument(metavar="NAME=TEXT", help="In place of a call's argument; NAME:=JSON is JSON.")
]


@app.command("list")
@over_fleet
def list_(
    *,
    kind: KindOption = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many.")] = 50,
    offset: Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the latest so many.")] = 0,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters, the latest first."""
    letters = _letters(gateway).listed(kind, limit, offset)
    if as_json:
        say_json([dataclasses.asdict(letter) for letter in letters])
        return
    if not letters:
        note("There are no dead letters." if offset == 0 else "There are no more dead letters.")
        return
    shown = table("ID", "KIND", "SUBJECT", "DIED", "ATTEMPTS", "ERROR")
    for letter in letters:
        died, attempts = ago(letter.died_at), str(letter.attempts)
        add_row(shown, letter.id, letter.kind, letter.subject, died, attempts, one_line(letter.error))
    show_table(shown)
    if len(letters) == limit:
        note(f"There may be more: --offset {offset + limit} shows those before.")


@app.command()
@over_fleet
def show(
    letter_id: Annotated[str, _ID],
    *,
    kind: KindOption = None,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter: what was asked, by whom, and what is known of its end."""
    letter = _letters(gateway).shown(letter_id, kind)
    if as_json:
        say_json(dataclasses.asdict(letter))
    else:
        print_letter(letter)


@app.command()
@over_fleet
def replay(  # noqa: PLR0913 - each is an option
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
    letter is dropped when its call succeeds, and when its news are on their way again. Exit code 1 if they are not.
    """
    letters = _letters(gateway, by)
    if everything:
        if letter_id is not None or kind not in {"wakeup", "webhook"}:
            raise typer.BadParameter("--all needs --kind wakeup or webhook, and no ID: calls are replayed one by one.")
        _tell("Due again", *letters.all_replayed(kind))
    if letter_id is None:
        raise typer.BadParameter("name the ID of the letter to replay.")
    result = letters.replayed(letter_id, kind, arguments or [], _given(whole), timeout)
    if result is None:
        _tell("Due again", 1, [])
    show_result(result, as_json=as_json)


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
    letters = _letters(gateway, by)
    if everything:
        note(f"Dropped: {letters.all_dropped(kind)}.")
        return
    _tell("Dropped", *letters.dropped(list(dict.fromkeys(letter_ids or [])), kind))


def _letters(gateway: Gateway | None, by: str | None = None) -> RedisLetters | GatewayLetters:
    return RedisLetters(by) if gateway is None else GatewayLetters(gateway)


def _given(whole: str | None) -> str | None:
    """Return the value of `--args`, or stdin: sensitive values should not be in a shell's history."""
    return sys.stdin.read() if whole == "-" else whole


def _tell(done: str, count: int, problems: list[str]) -> NoReturn:
    if count or not problems:
        note(f"{done}: {count}.")
    for problem in problems:
        note(problem, style="red")
    raise typer.Exit(1 if problems else 0)
