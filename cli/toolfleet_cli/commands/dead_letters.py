"""Lists, shows, replays and drops the calls whose outcome is unknown: `toolfleet dead-letters`."""

import asyncio
import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from toolfleet_cli.commands.completion import complete_dead
from toolfleet_cli.console.calls import read_arguments, show_result
from toolfleet_cli.console.output import add_row, note, say_json, show_table, table
from toolfleet_cli.console.values import ago, one_line, print_letter
from toolfleet_cli.operations import ask
from toolfleet_cli.remote import Gateway, over_fleet
from toolfleet_registry.contracts.calls import DeadLetter
from toolfleet_registry.contracts.tool_definition import ToolDefinition, tool_named
from toolfleet_registry.errors import NoSuchDeadLetter, NoSuchEntry, OperationRefused, SeveralLetters

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.store import DeadEntry
    from toolfleet_tasks.resources.dead_letters import ReplayRequest

app = typer.Typer(
    help="Calls whose end nobody can know, wake-ups and webhooks that nobody accepted: look at them, try them anew, drop them.",
    no_args_is_help=True,
)

Kind = Literal["call", "wakeup", "webhook"]
KindOption = Annotated[Kind | None, typer.Option(help="Only letters of this kind.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
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
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many.")] = 50,
    offset: Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the latest so many.")] = 0,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters, the latest first."""
    from toolfleet_tasks.resources import dead_letters

    query = {"kind": kind, "limit": limit, "offset": offset}
    letters = ask(dead_letters.list_dead_letters, gateway, query=query).letters
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
    letter = _one(letter_id, kind, gateway)
    if as_json:
        say_json(dataclasses.asdict(letter))
    else:
        print_letter(letter)


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
    letter is dropped when its call succeeds, and when its news are on their way again. Exit code 1 if they are not.
    """
    from toolfleet_tasks.resources import dead_letters

    if everything:
        if letter_id is not None or kind not in {"wakeup", "webhook"}:
            raise typer.BadParameter("--all needs --kind wakeup or webhook, and no ID: calls are replayed one by one.")
        report = ask(
            dead_letters.replay_dead_letters,
            gateway,
            query={"kind": kind},
            by=by,
            seconds=_REPLAY_SECONDS + _MORE_SECONDS,
        )
        _tell("Due again", report.due, report.problems)
    if letter_id is None:
        raise typer.BadParameter("name the ID of the letter to replay.")
    letter = _one(letter_id, kind, gateway)
    replayed = ask(
        dead_letters.replay_dead_letter,
        gateway,
        path={"letter_id": letter_id},
        query={"kind": letter.kind},
        body=_replay_request(letter, arguments or [], whole, timeout, gateway),
        by=by,
        seconds=(timeout or _REPLAY_SECONDS) + _MORE_SECONDS,
    )
    if replayed.result is None:
        _tell("Due again", 1, [])
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
    from toolfleet_tasks.resources import dead_letters

    if bool(letter_ids) == everything:
        raise typer.BadParameter("name the letters to drop, or say --all.")
    if everything:
        dropped = ask(dead_letters.drop_dead_letters, gateway, query={"kind": kind}, by=by).dropped
        note(f"Dropped: {dropped}.")
        return
    wanted, problems = list(dict.fromkeys(letter_ids or [])), list[str]()
    for one in wanted:
        try:
            ask(dead_letters.drop_dead_letter, gateway, path={"letter_id": one}, query={"kind": kind}, by=by)
        except NoSuchEntry:
            problems.append(str(NoSuchDeadLetter(one)))
        except OperationRefused as exc:
            problems.append(_several(one) if exc.error_code == SeveralLetters.error_code else str(exc))
    _tell("Dropped", len(wanted) - len(problems), problems)


def _one(letter_id: str, kind: Kind | None, gateway: Gateway | None) -> "DeadEntry":
    """Return a letter. Raises `OperationRefused` if there is none, or several of other kinds."""
    from toolfleet_tasks.resources import dead_letters

    path, query = {"letter_id": letter_id}, {"kind": kind}
    try:
        found = ask(dead_letters.get_dead_letter, gateway, path=path, query=query).letters
    except NoSuchEntry:
        raise NoSuchEntry(str(NoSuchDeadLetter(letter_id))) from None
    if len(found) > 1:
        raise OperationRefused(_several(letter_id))
    return found[0]


def _several(letter_id: str) -> str:
    return f"{letter_id!r} is a call and a wake-up that was to make it: say --kind."


def _replay_request(
    letter: "DeadEntry", words: list[str], whole: str | None, seconds: float | None, gateway: Gateway | None
) -> "ReplayRequest":
    from toolfleet_tasks.resources.dead_letters import ReplayRequest

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
    return ReplayRequest.model_construct(None, **values)


def _tool_of(letter: "DeadEntry") -> ToolDefinition | None:
    """Return the tool of a dead call, by which words become arguments."""
    from toolfleet import ToolFleet

    async def find(call: DeadLetter) -> ToolDefinition | None:
        async with ToolFleet() as fleet:
            return tool_named(call.tool_name, await fleet.tools(call.caller))

    return None if letter.body is None else asyncio.run(find(DeadLetter.model_validate(letter.body)))


def _tell(done: str, count: int, problems: list[str]) -> NoReturn:
    if count or not problems:
        note(f"{done}: {count}.")
    for problem in problems:
        note(problem, style="red")
    raise typer.Exit(1 if problems else 0)
