"""Lists, shows, replays and drops the calls whose end nobody can know: `toolfleet dead`."""

import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from toolfleet_cli.console.arguments import read_arguments
from toolfleet_cli.console.dead_letters import ago, one_line, print_letter
from toolfleet_cli.console.output import add_row, fail, note, progress, say_json, show_table, table
from toolfleet_cli.console.result import show_result
from toolfleet_cli.processes.completion import complete_dead
from toolfleet_cli.remote import dead_letters as remote_letters
from toolfleet_cli.remote.gateway import Gateway, UrlOption, gateway_of
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.dead_letters import DeadLetter
from toolfleet_registry.errors import NoSuchDeadLetter, NotReplayable
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.entries import DeadEntries
    from toolfleet_tasks.dead_letters.entry import DeadEntry

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

_KINDS: tuple[Kind, ...] = ("call", "wakeup", "webhook")
_MOST_AT_ONCE = 1000  # letters that `replay --all` takes


@app.command("list")
def list_(
    *,
    kind: KindOption = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many.")] = 50,
    offset: Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the latest so many.")] = 0,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters, the latest first."""
    if (gateway := gateway_of(url)) is None:
        letters = asyncio.run(_list(_kinds(kind), limit, offset))
    else:
        letters = remote_letters.listed(gateway, kind, limit, offset)
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
def show(
    letter_id: Annotated[str, _ID], *, kind: KindOption = None, url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """Show one dead letter: what was asked, by whom, and what is known of its end."""
    gateway = gateway_of(url)
    letter = asyncio.run(_show(letter_id, kind)) if gateway is None else remote_letters.shown(gateway, letter_id, kind)
    if as_json:
        say_json(dataclasses.asdict(letter))
    else:
        print_letter(letter)


@app.command()
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
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a call's whole ToolResult.")] = False,
) -> None:
    """Run a call once more, as a new call in the same name, or have a wake-up or a webhook sent again under its id.

    First make sure that a call may happen twice. Arguments that were not kept, such as sensitive ones, must be given. A
    letter is dropped when its call succeeds, and when its news are on their way again. Exit code 1 if they are not.
    """
    gateway = gateway_of(url)
    if everything:
        _refuse_all(gateway)
        if letter_id is not None or kind not in {"wakeup", "webhook"}:
            raise typer.BadParameter("--all needs --kind wakeup or webhook, and no ID: calls are replayed one by one.")
        _tell("Due again", *asyncio.run(_replay_all(kind)))
    if letter_id is None:
        raise typer.BadParameter("name the ID of the letter to replay.")
    said = arguments or [], _given(whole)
    if gateway is None:
        result = asyncio.run(_replay(letter_id, kind, *said, timeout))
    else:
        result = _replay_remotely(gateway, letter_id, kind, said, timeout)
    if result is None:
        _tell("Due again", 1, [])
    show_result(result, as_json=as_json)


@app.command()
def drop(
    letter_ids: Annotated[list[str] | None, _ID] = None,
    *,
    kind: KindOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Drop all dead letters, or all of one --kind.")] = False,
    url: UrlOption = None,
) -> None:
    """Forget dead letters. Exit code 1 if one of them is not there; the others are dropped all the same."""
    if bool(letter_ids) == everything:
        raise typer.BadParameter("name the letters to drop, or say --all.")
    wanted, gateway = list(dict.fromkeys(letter_ids or [])), gateway_of(url)
    if everything:
        _refuse_all(gateway)
        note(f"Dropped: {asyncio.run(_drop_all(_kinds(kind)))}.")
        return
    if gateway is None:
        _tell("Dropped", *asyncio.run(_drop(wanted, kind)))
    missing = remote_letters.dropped(gateway, wanted, kind)
    _tell("Dropped", len(wanted) - len(missing), [str(NoSuchDeadLetter(one)) for one in missing])


def _given(whole: str | None) -> str | None:
    """What `--args` says, or stdin: what is sensitive should not be in a shell's history."""
    return sys.stdin.read() if whole == "-" else whole


def _refuse_all(gateway: Gateway | None) -> None:
    if gateway is not None:
        raise typer.BadParameter("--all asks Redis: name the letters, or leave the gateway out.")


def _replay_remotely(
    gateway: Gateway, letter_id: str, kind: Kind | None, said: tuple[list[str], str | None], seconds: float | None
) -> ToolResult | None:
    arguments = None if said == ([], None) else read_arguments(*said, None)
    if arguments is not None and not isinstance(arguments, dict):
        raise typer.BadParameter("--args must be a JSON object.")
    letter = remote_letters.shown(gateway, letter_id, kind)
    return remote_letters.replayed(gateway, letter, arguments, seconds)


async def _list(kinds: Sequence[Kind], limit: int, offset: int) -> "Sequence[DeadEntry]":
    async with progress("Asking Redis"), _entries().of(load_settings()) as dead:
        return await dead.list(kinds, limit, offset)


async def _show(letter_id: str, kind: Kind | None) -> "DeadEntry":
    async with progress("Asking Redis"), _entries().of(load_settings()) as dead:
        return _one(letter_id, await dead.find(letter_id, _kinds(kind)))


async def _replay(
    letter_id: str, kind: Kind | None, words: list[str], whole: str | None, seconds: float | None
) -> ToolResult | None:
    """The result of a call; `None`: news are on their way again."""
    letter = await _show(letter_id, kind)
    if letter.kind == "call":
        return await _replay_call(letter_id, words, whole, seconds)
    if words or whole is not None:
        raise typer.BadParameter("only a call takes arguments.")
    count, problems = await _replay_events([letter_id])
    return None if count else fail("\n".join(problems), code=1)


async def _replay_call(call_id: str, words: list[str], whole: str | None, seconds: float | None) -> ToolResult:
    from toolfleet import ToolFleet  # noqa: PLC0415 - takes a second to load, which `--help` should not

    try:
        async with ToolFleet() as fleet:
            letter = await fleet.dead_letters.show(call_id)
            tools = await fleet.tools(letter.caller) if isinstance(letter, DeadLetter) else []
            tool = next((tool for tool in tools if tool.name == getattr(letter, "tool_name", None)), None)
            arguments = read_arguments(words, whole, tool)
            if not isinstance(arguments, dict):
                raise typer.BadParameter("--args must be a JSON object.")
            async with progress(f"{call_id} is running once more"):
                return await fleet.dead_letters.replay(call_id, arguments=arguments, timeout=seconds)
    except NoSuchDeadLetter as exc:
        fail(str(exc), code=1)


async def _replay_all(kind: Kind) -> tuple[int, list[str]]:
    async with progress("Asking Redis"), _entries().of(load_settings()) as dead:
        letters = await dead.list((kind,), _MOST_AT_ONCE)
    return await _replay_events([letter.id for letter in letters])


async def _replay_events(ids: list[str]) -> tuple[int, list[str]]:
    """How many are tried anew, and what is the matter with the others."""
    problems = list[str]()
    async with progress("Asking Redis"), _entries().of(load_settings()) as dead:
        for one in ids:
            try:
                problems += [] if await dead.events.replay(one) else [str(NoSuchDeadLetter(one))]
            except NotReplayable as exc:
                problems.append(str(exc))
    return len(ids) - len(problems), problems


async def _drop(ids: list[str], kind: Kind | None) -> tuple[int, list[str]]:
    """How many were there and are not any more, and what is the matter with the others."""
    async with progress("Asking Redis"), _entries().of(load_settings()) as dead:
        several = [] if kind else [one for one in ids if len(await dead.find(one)) > 1]
        dropped = await dead.drop([one for one in ids if one not in several], _kinds(kind))
    missing = [one for one in ids if one not in dropped and one not in several]
    return len(dropped), [*map(_several, several), *(str(NoSuchDeadLetter(one)) for one in missing)]


async def _drop_all(kinds: Sequence[Kind]) -> int:
    async with progress("Asking Redis"), _entries().of(load_settings()) as dead:
        return await dead.drop_all(kinds)


def _entries() -> "type[DeadEntries]":
    from toolfleet_tasks.dead_letters.entries import DeadEntries  # noqa: PLC0415 - takes a while to load

    return DeadEntries


def _kinds(kind: Kind | None) -> tuple[Kind, ...]:
    return _KINDS if kind is None else (kind,)


def _one(letter_id: str, found: "Sequence[DeadEntry]") -> "DeadEntry":
    """The only one that was found."""
    if not found:
        fail(str(NoSuchDeadLetter(letter_id)), code=1)
    if len(found) > 1:
        fail(_several(letter_id), code=1)
    return found[0]


def _several(letter_id: str) -> str:
    return f"{letter_id!r} is a call and a wake-up that was to make it: say --kind."


def _tell(done: str, count: int, problems: list[str]) -> NoReturn:
    if count or not problems:
        note(f"{done}: {count}.")
    for problem in problems:
        note(problem, style="red")
    raise typer.Exit(1 if problems else 0)
